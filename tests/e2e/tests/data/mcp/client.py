"""A client of MCP, which prints what it sees: `client.py URL legacy|auto|REVISION`."""
import asyncio
import sys

from mcp import Client, MCPError
from mcp.types import ElicitResult


async def elicit(context, params):
    return ElicitResult(action="accept", content={"name": "agent"})


async def attempt(what, call):
    try:
        result = await call
        print(what, "->", result, flush=True)
    except MCPError as error:
        print(what, "refused:", error.error.code, error.error.message, flush=True)


def text(result):
    return result.content[0].text


async def main():
    url, mode = sys.argv[1:]
    async with Client(url, mode=mode, elicitation_callback=elicit) as client:
        tools = await client.list_tools()
        print("tools:", *sorted(tool.name for tool in tools.tools))
        # A client that is told the revision does not ask what the server has.
        has_documents = mode.startswith("2") or client.server_capabilities.resources is not None
        if has_documents:
            resources = await client.list_resources()
            print("resources:", *sorted(str(resource.uri) for resource in resources.resources))
            prompts = await client.list_prompts()
            print("prompts:", *sorted(prompt.name for prompt in prompts.prompts))

        async def call(tool, **arguments):
            return text(await client.call_tool(tool, arguments))

        await attempt("get_issue", call("get_issue", number=7))
        await attempt("delete_repo", call("delete_repo", name="x"))
        await attempt("search_code", call("search_code", query="y"))
        await attempt("ask_name", call("ask_name"))

        async def read(uri):
            return (await client.read_resource(uri)).contents[0].text

        if has_documents:
            await attempt("docs", read("docs://one"))
            await attempt("secret", read("secret://two"))
        if has_documents and client.protocol_version >= "2026":
            async with client.listen(resource_subscriptions=["docs://one"]) as changes:
                await call("search_anew")
                print("subscription ->", (await anext(aiter(changes))).uri, flush=True)
        await attempt("get_issue", call("get_issue", number=8))
    print("end")


asyncio.run(main())
