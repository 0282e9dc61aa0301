"""An agent over JSON-RPC: `server.py ADDRESS PORT URL`. It answers messages, and keeps tasks."""
import sys

import uvicorn
from a2a.helpers import new_text_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_agent_card_routes, create_jsonrpc_routes
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from starlette.applications import Starlette


class Answers(AgentExecutor):
    async def execute(self, context, event_queue):
        await event_queue.enqueue_event(new_text_message(f"heard {context.get_user_input()}"))

    async def cancel(self, context, event_queue):
        raise NotImplementedError


address, port, url = sys.argv[1:]
card = AgentCard(
    name="lab",
    description="answers",
    version="1",
    capabilities=AgentCapabilities(streaming=True),
    default_input_modes=["text/plain"],
    default_output_modes=["text/plain"],
    skills=[AgentSkill(id="answer", name="answer", description="answers", tags=["lab"])],
    supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
)
handler = DefaultRequestHandler(Answers(), InMemoryTaskStore(), card)
routes = create_agent_card_routes(card) + create_jsonrpc_routes(handler, "/rpc")
print("starts", flush=True)
uvicorn.run(Starlette(routes=routes), host=address, port=int(port), log_level="error")
