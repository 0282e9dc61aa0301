"""A client of an agent, which prints what it sees: `client.py URL`."""
import asyncio
import sys

import httpx
from a2a.client import ClientConfig, ClientFactory
from a2a.helpers import new_text_message
from a2a.types import GetTaskRequest, ListTasksRequest, Role, SendMessageRequest


async def main():
    for streaming in [False, True]:
        async with httpx.AsyncClient() as http:
            config = ClientConfig(streaming=streaming, httpx_client=http)
            client = await ClientFactory(config).create_from_url(sys.argv[1])
            message = new_text_message("hi", role=Role.ROLE_USER)
            async for event in client.send_message(SendMessageRequest(message=message)):
                print("answer:", event.message.parts[0].text, flush=True)
            for what, call in [("list", client.list_tasks(ListTasksRequest())), ("get", client.get_task(GetTaskRequest(id="7")))]:
                try:
                    print(what, "->", await call, flush=True)
                except Exception as error:
                    print(what, "refused:", error, flush=True)
    print("end")


asyncio.run(main())
