"""The shop: one page per item, rendered from one Redis record.

GET /item/<id>[?currency=EUR][&quantity=N] parses the path and the query string, asks Redis for the
record of that item (one query per request), and renders item.html with Jinja2.
GET /health answers without touching the database.
The database's host name comes from the environment variable DB_HOST, its port from DB_PORT.
"""
import json
import os
from urllib.parse import parse_qs

import jinja2
import redis

RATES = {"EUR": 1.0, "USD": 1.09, "GBP": 0.86}

_here = os.path.dirname(os.path.abspath(__file__))
_template = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_here), autoescape=True, auto_reload=False
).get_template("item.html")
_db = redis.Redis(
    host=os.environ.get("DB_HOST", "db"),
    port=int(os.environ.get("DB_PORT", "6379")),
    socket_timeout=5,
)


def _answer(start_response, status, body, content_type="text/html; charset=utf-8"):
    start_response(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]


def _item(environ, start_response, number):
    query = parse_qs(environ.get("QUERY_STRING", ""))
    currency = query.get("currency", ["EUR"])[0]
    quantity = query.get("quantity", ["1"])[0]
    if not number.isdigit() or not quantity.isdigit() or currency not in RATES:
        return _answer(start_response, "400 Bad Request", b"bad item, quantity or currency\n", "text/plain")
    record = _db.get("item:" + number)
    if record is None:
        return _answer(start_response, "404 Not Found", b"no such item\n", "text/plain")
    item = json.loads(record)
    page = _template.render(
        item=item,
        currency=currency,
        quantity=int(quantity),
        price=item["cents"] / 100 * RATES[currency],
    )
    return _answer(start_response, "200 OK", page.encode())


def application(environ, start_response):
    path = environ["PATH_INFO"]
    if path.startswith("/item/"):
        return _item(environ, start_response, path[6:])
    if path == "/health":
        return _answer(start_response, "200 OK", b"ok\n", "text/plain")
    return _answer(start_response, "404 Not Found", b"no such page\n", "text/plain")
