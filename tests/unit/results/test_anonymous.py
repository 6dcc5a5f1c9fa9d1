"""What names a machine or its user is taken out of texts, and nothing else is."""

import base64
import getpass
import socket

import pytest

from keyshift.results.anonymous import anonymous, anonymous_all, anonymous_value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Kafka at 10.1.2.3:9092 went away", "Kafka at <address> went away"),
        ("no route to 192.168.0.17.", "no route to <address>."),
        ("connect to [fe80::1ff:fe23:4567:890a]:9092 failed", "connect to <address> failed"),
        ("MinIO at kafka-0.kafka.svc:19092, localhost:9000", "MinIO at <address>, <address>"),
        ("slots 0 on ip-10-0-0-3.ec2.internal", "slots 0 on <address>"),
        ("slots 0 on node-3.lab.internal, 1 on ada.local.", "slots 0 on <address>, 1 on <address>."),
        ("no answer of db.internal.example.com: 3", "no answer of <address>: 3"),
        ("Spark's log is /home/ada/.keyshift/spark.log", "Spark's log is <path>"),
        ("File '/usr/lib/python3/x.py', line 3", "File '<path>', line 3"),
        ("java -cp /opt/a.jar/x:/home/ada/b.jar", "java -cp <path>:<path>"),
        ("in jar:file:/home/ada/b.jar!/org/x.class", "in jar:<path>!<path>"),
        ("at file:/tmp/a/b.jar(/opt/x y)", "at <path>(<path> y)"),
        ("in ~/keyshift and C:\\Users\\ada\\x.txt", "in <path> and <path>"),
        ("secret_key=abc123, token: 9f8e", "secret_key=<hidden>, token: <hidden>"),
        ("redis://me:word@store", "redis://<hidden>@store"),
        ("redis://:word@10.0.0.5:6379/0", "redis://<hidden>@<address>/0"),
        ("kafka://me:w@rd@broker:9092", "kafka://<hidden>@<address>"),
        ("{'secret_key': 'a b', \"password\": \"x\"}", "{'secret_key': <hidden>, \"password\": <hidden>}"),
        ('{\\"token\\": \\"x\\"}', '{\\"token\\": <hidden>'),
        ("api_key=abc, ROOT_PASSWORD=a;b", "api_key=<hidden>, ROOT_PASSWORD=<hidden>"),
        ("Authorization: Bearer abc.def, then Bearer eyJhbGciOi", "Authorization: <hidden>, then Bearer <hidden>"),
        ("/home/jörg/a.csv of /データ/x", "<path> of <path>"),
        ("no file '/home/ada/My Tapes/a.csv', line 3", "no file '<path>', line 3"),
        ("File \x1b[0;32m/srv/main/x.py:12\x1b[0m", "File \x1b[0;32m<path>:12\x1b[0m"),
    ],
)
def test_addresses_paths_and_credentials_go(text, expected):
    assert anonymous(text) == expected
    assert anonymous(expected) == expected


@pytest.mark.parametrize(
    "text",
    [
        "2000 events/s, P99 12.5 ms, 1/2 of 3/4",
        "Spark 4.3.0, Python 3.11.2, protocol 1.2.3, java 17.0.8.1",
        "fault = stop:destination@install:3s, rate_steps=8:4000,16:1000, 12:30:45 UTC",
        "20260101T120000-keycount-fluid-0a1b2c: verdict ok",
        "<td>1</td></tr> https://www.w3.org/2000/svg text/html",
        "key 17 of unit 3; keys: 500; a token of 5",
        "numpy/core and data/moving.txt",
        "at Executor.scala:1234, slot_task.py:1023, index.pyx:1234, table_class_helper.pxi:7081",
        "org.apache.spark.internal.Logging, jdk.internal.reflect.Method, spark.local.dir, threading.local()",
        "found[::-1], rows[1::2], rows[::16]",
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert anonymous(text) == text


@pytest.mark.parametrize(
    "value",
    [
        *("control:1000", "control=30:5000,90:0", "map:2000,counter:40000"),
        *("4: rate 4000 control; 9: plan 0:1", "kill:slot@4"),
    ],
)
def test_a_parameter_that_names_a_source_or_a_stage_stays(value):
    row = {"parameters": {"rates": value, "points": {"a": [value]}}}
    assert anonymous_all(row) == row
    assert anonymous_value(f'rates = "{value}"') == f'rates = "{value}"'


REDIS = ["store.lab.org:6379", "http://store:6379", "localhost:6379", "10.0.0.1:4000", "redis://:word@store:6379"]
HIDDEN = ["<address>", "http://<address>", "<address>", "<address>", "redis://<hidden>@<address>"]


def test_a_parameter_that_says_where_something_is_loses_it_and_a_version_is_no_address():
    told = {"versions": {"java": "17.0.8.1"}, "machine": {"system": "Linux 5.15.153.1-microsoft-standard-WSL2"}}
    given = {"parameters": {"redis": "store:6379", "more": REDIS}, "error": "at store:6379"}
    hidden = {"parameters": {"redis": "<address>", "more": HIDDEN}, "error": "at <address>"}
    assert anonymous_all(given | told) == hidden | told


@pytest.mark.parametrize(
    "path", ["/home/ada/My Tapes/ü.csv", "/my secret.csv", "~ada/a b/c", "C:\\My Files\\x", "file:/a b/c d"]
)
def test_a_value_that_begins_as_a_path_is_one_whatever_is_in_it(path):
    assert anonymous_value(path) == "<path>"
    given = {"parameters": {"text": path}, "papermill": {"input_path": path}}
    assert anonymous_all(given) == {"parameters": {"text": "<path>"}, "papermill": {"input_path": "<path>"}}


def test_an_image_in_a_text_is_not_damaged():
    image = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 20).decode()
    text = f'<img src="{image}"> from /home/ada/x.png'
    assert anonymous(text) == f'<img src="{image}"> from <path>'


def test_the_names_of_this_machine_and_of_its_user_go_but_not_ours(monkeypatch):
    monkeypatch.setattr(socket, "gethostname", lambda: "ada-laptop.home")
    monkeypatch.setattr(getpass, "getuser", lambda: "ada")
    assert anonymous("ada at ada-laptop, ada-laptop.home") == "<user> at <host>, <host>"
    assert anonymous("adamant") == "adamant"
    assert anonymous("see /home/ada/x.csv, '/home/ada/My Tapes/a.csv'") == "see <path>, '<path>'"
    assert anonymous_all({"ada": ["ada", 3, {"x": None}]}) == {"ada": ["<user>", 3, {"x": None}]}
    monkeypatch.setattr(getpass, "getuser", lambda: "keyshift")
    assert anonymous("`keyshift up`, keyshift 0.1.0") == "`keyshift up`, keyshift 0.1.0"


def test_credentials_of_the_environment_go_wherever_they_are(monkeypatch):
    monkeypatch.setenv("KEYSHIFT_REDIS_PASSWORD", "kX9+(q")
    assert anonymous("redis said kX9+(q!") == "redis said <hidden>!"
