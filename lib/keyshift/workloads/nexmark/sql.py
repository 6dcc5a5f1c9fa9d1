"""What the queries of ``nexmark`` have to give, in SQL over the events, written from the published semantics alone.

``events`` is the table of the first stage's events. Parameters: ``$window``, ``$slide``, ``$gap`` and ``$delay`` in
microseconds, ``$most`` bids. Each statement of ``ROWS`` gives the rows of a query over the whole input: ``key`` and
``t``, the watermark at which they are due, and the columns of the rows. ``ENTRIES`` gives what has to be kept until
then, with ``due`` instead of ``t``, 0 if it waits for no time; where it is missing, it is the rows. What is ``behind``
its time comes when that is over. ``LAST`` tells of the rows that were due what the last stage is left with.
"""


def _floor(value: str, unit: str) -> str:
    """The largest multiple of ``unit`` that is not above ``value``: ``%`` in SQL goes towards 0."""
    return f"({value} - (({value} % {unit}) + {unit}) % {unit})"


_OPEN = f"SELECT e.*, {_floor('e.at', '$window')} AS start FROM events e"

_PRICED = """
    SELECT a.key, a.at, a.expires, a.category, a.seller, max(b.price) AS price FROM events a
    {kind} JOIN events b ON a.key = b.key AND b.kind = 2 AND b.at BETWEEN a.at AND a.expires
    WHERE a.kind = 1 GROUP BY ALL
"""
_SOLD = _PRICED.format(kind="INNER")

_SESSIONS = """
    WITH marked AS (
        SELECT e.key, e.at AS moment, coalesce(e.at - lag(e.at) OVER bidder >= $gap, true) AS fresh FROM events e
        WINDOW bidder AS (PARTITION BY e.key ORDER BY e.at)
    ), numbered AS (
        SELECT *, sum(fresh::INT) OVER bidder AS session, row_number() OVER bidder AS number FROM marked
        WINDOW bidder AS (PARTITION BY key ORDER BY moment, NOT fresh ROWS UNBOUNDED PRECEDING)
    ), sessions AS (
        SELECT key, session, min(moment) AS start, max(moment) AS last, count(*) AS bids FROM numbered
        GROUP BY key, session
    )
"""

ROWS = {
    "q3": """
        SELECT p.key, greatest(p.at, a.at) + $delay + 1 AS t, a.auction, p.name, p.city, p.state
        FROM events p JOIN events a ON p.key = a.key
        WHERE p.kind = 0 AND a.kind = 1 AND a.category = 10 AND p.state IN ('OR', 'ID', 'CA')
    """,
    "q4": f"SELECT key, expires + $delay + 1 AS t, category, price FROM ({_SOLD})",
    "q5": f"""
        SELECT e.key, w.start + $window + $delay AS t, w.start, count(*) AS count
        FROM events e, LATERAL (SELECT unnest(range({_floor("e.at", "$slide")}, e.at - $window, -$slide)) AS start) w
        GROUP BY e.key, w.start
    """,
    "q6": f"SELECT key, expires + $delay + 1 AS t, seller, expires, price FROM ({_SOLD})",
    "q7": f"""
        SELECT key, start + $window + $delay AS t, start, price, bidder FROM ({_OPEN})
        QUALIFY price = max(price) OVER (PARTITION BY key, start)
    """,
    "q8": f"""
        SELECT p.key, p.start + $window + $delay AS t, p.start, a.auction, a.reserve, p.name
        FROM ({_OPEN} WHERE e.kind = 0) p JOIN ({_OPEN} WHERE e.kind = 1) a ON p.key = a.key AND p.start = a.start
    """,
    "q11": f"""
        {_SESSIONS} SELECT key, last + $gap + $delay AS t, start, last, bids % $most AS count FROM sessions
        WHERE bids % $most > 0
    """,
}

# Rows that are the result of an event, not of a timer, and how often each comes.
AT_ONCE = {
    "q11": f"""
        {_SESSIONS} SELECT key, start, last, $most::BIGINT AS count
        FROM sessions, LATERAL (SELECT unnest(range(bids // $most)))
    """,
}
# Those that came (``fired``), with the session of which they tell: start and last are then those that it has in the
# end. Both are of bids of it, as is the event, and with those between them there are as many as are told.
OF_SESSIONS = {
    "q11": f"""
        {_SESSIONS}, places AS (
            SELECT key, moment, session, min(number) AS first, max(number) AS last FROM numbered GROUP BY ALL
        )
        SELECT f.router, f."offset", f."position", f.key, f.start, f.last, f.count,
               s.start AS of_start, s.last AS of_last
        FROM fired f
        LEFT JOIN events e ON e.router = f.router AND e."offset" = f."offset" AND e."position" = f."position"
        LEFT JOIN places a ON a.key = f.key AND a.moment = f.start
        LEFT JOIN places b ON b.key = f.key AND b.moment = f.last
        LEFT JOIN sessions s ON s.key = f.key AND s.session = a.session AND s.session = b.session
             AND f.count = $most AND b.last - a.first + 1 >= $most AND e.at BETWEEN f.start AND f.last
    """,
}

_CLOSING = f"""
    SELECT x.key, x.expires + $delay + 1 AS due, false AS behind, 1 AS what, x.at, x.expires, x.category, x.seller,
           coalesce(x.price, -1) AS price FROM ({_PRICED.format(kind="LEFT")}) x
    UNION ALL
    SELECT a.key, a.expires + $delay + 1, true, 2, 0, 0, 0, 0, 0 FROM events a WHERE a.kind = 1
    UNION ALL
    SELECT b.key, 0, false, 0, b.at, 0, 0, 0, b.price FROM events b
    WHERE b.kind = 2 AND b.key NOT IN (SELECT key FROM events WHERE kind = 1)
"""
ENTRIES = {
    "q4": _CLOSING,
    "q6": _CLOSING,
    "q3": """
        SELECT p.key, 0 AS due, 0 AS auction, p.at, p.name, p.city, p.state FROM events p
        WHERE p.kind = 0 AND p.state IN ('OR', 'ID', 'CA')
        UNION ALL
        SELECT a.key, CASE WHEN p.key IS NULL THEN 0 ELSE greatest(p.at, a.at) + $delay + 1 END, a.auction, a.at,
               coalesce(p.name, ''), coalesce(p.city, ''), coalesce(p.state, '')
        FROM events a LEFT JOIN (SELECT * FROM events WHERE kind = 0 AND state IN ('OR', 'ID', 'CA')) p
             ON p.key = a.key
        WHERE a.kind = 1 AND a.category = 10
    """,
    "q8": f"""
        SELECT key, start + $window + $delay AS due, start, auction, reserve, name FROM ({_OPEN})
    """,
    "q11": f"""
        {_SESSIONS} SELECT key, last + $gap + $delay AS due, start, last, bids % $most AS count FROM sessions
    """,
}

_LEADERS = """
    SELECT start AS key, any_value(seq) AS seq, any_value(best) AS best, list_sort(list(DISTINCT key)) AS leaders
    FROM (SELECT *, count(*) OVER (PARTITION BY start) AS seq, max({value}) OVER (PARTITION BY start) AS best FROM rows)
    WHERE {value} = best GROUP BY start
"""
_LAST_TEN = """
    SELECT seller AS key, any_value(seq) AS seq, list(expires ORDER BY expires, auction) AS expires,
           list(auction ORDER BY expires, auction) AS auctions, list(price ORDER BY expires, auction) AS prices
    FROM (
        SELECT seller, count(*) OVER (PARTITION BY seller) AS seq, expires, key AS auction, price FROM rows
        QUALIFY row_number() OVER (PARTITION BY seller ORDER BY expires DESC, key DESC) <= 10
    ) GROUP BY seller
"""
LAST = {
    "q4": "SELECT category AS key, sum(price)::BIGINT AS total, count(*) AS count FROM rows GROUP BY category",
    "q6": _LAST_TEN,
    "q5": _LEADERS.format(value="count"),
    "q7": _LEADERS.format(value="price"),
}
