"""The archive of Spark's classes that the environment was set up with fits the Java and the jars that are there."""

import sys

import pytest

from spark_workers import below


@pytest.mark.skipif(sys.platform != "linux", reason="there is no other way to see what a process has mapped")
def test_spark_takes_its_classes_from_the_archive(lab):
    (spark,) = (process for process, command in below() if "SparkSubmit" in " ".join(command))
    mapped = [each.path for each in spark.memory_maps() if "keyshift-classes" in each.path]
    assert mapped, "without it a start takes twice as long: `python -m keyshift.place.class_archive` makes it anew"
