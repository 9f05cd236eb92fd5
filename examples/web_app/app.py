"""A web app that publishes orders: it responds after the broker has stored the order.

uvicorn --app-dir examples/web_app app:app --port 8000
curl -d '{"id": 1, "customer": "ann", "amount": 30}' http://127.0.0.1:8000/orders
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock.client import ClientError, Producer

TOPIC = "orders"


@asynccontextmanager
async def with_producer(app: Starlette) -> AsyncIterator[None]:
    """One producer for all requests, which batches concurrent publishes."""
    async with Producer(os.environ.get("NSQD", "127.0.0.1:4150")) as producer:
        app.state.producer = producer
        yield


async def take_order(request: Request) -> JSONResponse:
    """Returns 201 if the order is stored, 400 if it is invalid, 503 if it cannot be stored."""
    try:
        order = json.loads(await request.body())
        body = json.dumps({key: order[key] for key in ("id", "customer", "amount")})
    except (ValueError, KeyError, TypeError):
        return JSONResponse({"error": "an order requires id, customer and amount"}, 400)
    try:
        await request.app.state.producer.publish(TOPIC, body.encode())
    except ClientError as error:
        return JSONResponse({"error": str(error)}, 503)
    return JSONResponse({"stored": order["id"]}, 201)


app = Starlette(routes=[Route("/orders", take_order, methods=["POST"])], lifespan=with_producer)
