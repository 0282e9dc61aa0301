"""A server of MCP with tools, a resource and a prompt: `server.py ADDRESS PORT [json]`. The names of called tools are appended to RECORD."""
import os
import sys

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp.types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from pydantic import BaseModel

server = MCPServer("lab", log_level="ERROR")


def called(name):
    with open(os.environ["RECORD"], "a") as record:
        record.write(name + "\n")


class Name(BaseModel):
    name: str


@server.tool()
def get_issue(number: int) -> str:
    called("get_issue")
    return f"issue {number}"


@server.tool()
async def search_code(query: str, ctx: Context) -> str:
    for step in range(1, 3):
        await ctx.report_progress(step, 2)
    return f"found {query}"


@server.tool()
async def ask_name(ctx: Context) -> str | InputRequiredResult:
    called("ask_name")
    if ctx.protocol_version < "2026":
        answer = await ctx.elicit("Who?", Name)
        return f"hello {answer.data.name}"
    if ctx.input_responses:
        return f"hello {ctx.input_responses['name'].content['name']}"
    question = ElicitRequestFormParams(message="Who?", requested_schema=Name.model_json_schema())
    return InputRequiredResult(input_requests={"name": ElicitRequest(params=question)})


@server.tool()
async def search_anew(ctx: Context) -> str:
    await ctx.notify_resource_updated("docs://one")
    return "changed"


@server.tool()
def delete_repo(name: str) -> str:
    called("delete_repo")
    return "deleted"


@server.resource("docs://one")
def one() -> str:
    return "the first"


@server.resource("secret://two")
def two() -> str:
    return "the second"


@server.prompt()
def review(text: str) -> str:
    return f"review {text}"


@server.prompt()
def destroy(text: str) -> str:
    return f"destroy {text}"


print("starts", flush=True)
server.run(
    "streamable-http",
    host=sys.argv[1],
    port=int(sys.argv[2]),
    json_response="json" in sys.argv,
    transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
)
