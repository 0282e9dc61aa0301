"""A backend of models for the tests: `backend.py FOLDER PORT`. The first part of a path selects the behaviour, the rest is the
path of the interface. Each request is a line of FOLDER/seen."""

import asyncio, json, os, sys, time

folder, port = sys.argv[1], int(sys.argv[2])


def has_result(body):
    """Returns true if the last message is the result of a tool."""
    last = (body.get('messages') or body.get('input') or [{}])[-1]
    content = last.get('content') if isinstance(last, dict) else None
    kinds = [part.get('type') for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    return last.get('role') == 'tool' or last.get('type') == 'function_call_output' or 'tool_result' in kinds


def chat(body, use_tool):
    message = {'role': 'assistant', 'content': 'Hello there.'}
    if use_tool:
        call = {'id': 'call_1', 'type': 'function', 'function': {'name': body['tools'][0]['function']['name'], 'arguments': '{"city": "Oslo"}'}}
        message = {'role': 'assistant', 'content': None, 'tool_calls': [call]}
    return message


def answer_of(path, body):
    """Returns the response as one document."""
    model, use_tool = body.get('model'), bool(body.get('tools')) and not has_result(body)
    if path == '/v1/chat/completions':
        reason = 'tool_calls' if use_tool else 'stop'
        return {'id': 'c', 'object': 'chat.completion', 'created': 1, 'model': model,
            'choices': [{'index': 0, 'message': chat(body, use_tool), 'finish_reason': reason}],
            'usage': {'prompt_tokens': 11, 'completion_tokens': 22, 'total_tokens': 33}}
    if path == '/v1/messages/count_tokens': return {'input_tokens': 11}
    if path == '/v1/messages':
        content = [{'type': 'text', 'text': 'Hello there.'}]
        if use_tool: content = [{'type': 'tool_use', 'id': 'toolu_1', 'name': body['tools'][0]['name'], 'input': {'city': 'Oslo'}}]
        return {'id': 'msg_1', 'type': 'message', 'role': 'assistant', 'model': model, 'content': content,
            'stop_reason': 'tool_use' if use_tool else 'end_turn', 'stop_sequence': None, 'usage': {'input_tokens': 11, 'output_tokens': 22}}
    if path == '/v1/responses':
        output = [{'type': 'message', 'id': 'm', 'role': 'assistant', 'status': 'completed', 'content': [{'type': 'output_text', 'text': 'Hello there.', 'annotations': []}]}]
        return {'id': 'r', 'object': 'response', 'created_at': 1, 'status': 'completed', 'model': model, 'output': output,
            'parallel_tool_calls': False, 'tool_choice': 'auto', 'tools': [], 'usage': {'input_tokens': 11, 'input_tokens_details': {'cached_tokens': 0},
            'output_tokens': 22, 'output_tokens_details': {'reasoning_tokens': 0}, 'total_tokens': 33}}
    if path == '/v1/embeddings':
        return {'object': 'list', 'model': model, 'data': [{'object': 'embedding', 'index': 0, 'embedding': [0.5, 1.5]}], 'usage': {'prompt_tokens': 11, 'total_tokens': 11}}
    if path == '/v1/models': return {'object': 'list', 'data': [{'id': 'm1', 'object': 'model', 'created': 1, 'owned_by': 'lab'}]}
    return {'id': path.rsplit('/', 1)[1], 'object': 'model', 'created': 1, 'owned_by': 'lab'}


def agents_turn(path, body):
    """Returns a call of the agent's tool that writes a file, or runs the command in FOLDER/command if there is one. Then, or without such
    a tool, returns the final message."""
    whole, names = answer_of(path, {**body, 'tools': None}), [tool.get('name') for tool in body.get('tools') or []]
    said = json.dumps(body.get('messages') or body.get('input'))
    if 'ask the lab' in said: return labs_turn(path, body, said, whole)
    if 'do the steps' in said: return steps_turn(path, names, said, whole)
    if 'toolu_9' in said or 'call_9' in said: return whole
    command = open(folder + '/command').read() if os.path.exists(folder + '/command') else None
    if path == '/v1/messages' and command and 'Bash' in names:
        use = {'type': 'tool_use', 'id': 'toolu_9', 'name': 'Bash', 'input': {'command': command, 'description': 'Writes a file'}}
        return {**whole, 'content': [use], 'stop_reason': 'tool_use'}
    if path == '/v1/messages' and 'Write' in names:
        use = {'type': 'tool_use', 'id': 'toolu_9', 'name': 'Write', 'input': {'file_path': body_folder(said) + '/written', 'content': 'by a model\n'}}
        return {**whole, 'content': [use], 'stop_reason': 'tool_use'}
    command = command or "printf 'by a model\\n' > written"
    for name, arguments in [('exec_command', {'cmd': command}), ('shell_command', {'command': command}), ('shell', {'command': ['sh', '-c', command]})]:
        if path == '/v1/responses' and name in names:
            call = {'type': 'function_call', 'id': 'fc_9', 'call_id': 'call_9', 'name': name, 'arguments': json.dumps(arguments), 'status': 'completed'}
            return {**whole, 'output': [call]}
    return whole


def steps_turn(path, names, said, whole):
    """Returns a call of the agent's shell with the next line of FOLDER/steps, then the final message."""
    for number, command in enumerate(open(folder + '/steps').read().splitlines()):
        if f'step_{number}' in said: continue
        if path == '/v1/messages' and 'Bash' in names:
            use = {'type': 'tool_use', 'id': f'toolu_step_{number}', 'name': 'Bash', 'input': {'command': command, 'description': 'A step'}}
            return {**whole, 'content': [use], 'stop_reason': 'tool_use'}
        for name, arguments in [('exec_command', {'cmd': command, 'yield_time_ms': 60000}), ('shell_command', {'command': command}), ('shell', {'command': ['sh', '-c', command]})]:
            if path == '/v1/responses' and name in names:
                call = {'type': 'function_call', 'id': f'fc_step_{number}', 'call_id': f'call_step_{number}', 'name': name, 'arguments': json.dumps(arguments), 'status': 'completed'}
                return {**whole, 'output': [call]}
        break
    return whole


def labs_turn(path, body, said, whole):
    """Returns a call of the first, then of the second tool of the server of MCP that the agent has, which may have to wait for it. Then returns the
    final message."""
    if 'lab_0' not in said and 'WaitForMcpServers' in [tool.get('name') for tool in body.get('tools') or []]:
        return {**whole, 'content': [{'type': 'tool_use', 'id': 'toolu_lab_0', 'name': 'WaitForMcpServers', 'input': {}}], 'stop_reason': 'tool_use'}
    for id, wanted, arguments in [('lab_1', 'get_issue', {'number': 7}), ('lab_2', 'delete_repo', {'name': 'x'})]:
        if id in said: continue
        for tool in body.get('tools') or []:
            names = [(tool.get('name') or '', {})] + [(inner['name'], {'namespace': tool['name']}) for inner in tool.get('tools') or []]
            for name, namespace in names:
                if not name.endswith(wanted): continue
                if path == '/v1/messages':
                    use = {'type': 'tool_use', 'id': 'toolu_' + id, 'name': name, 'input': arguments}
                    return {**whole, 'content': [use], 'stop_reason': 'tool_use'}
                call = {'type': 'function_call', 'id': 'fc_' + id, 'call_id': 'call_' + id, 'name': name, 'arguments': json.dumps(arguments), 'status': 'completed'}
                return {**whole, 'output': [{**call, **namespace}]}
    return whole


def body_folder(said):
    """Returns the folder that the prompt names."""
    return said.split('write into ', 1)[1].split(' ', 1)[0]


def events_of(path, body, whole=None):
    """Returns the response as events: their names, or None, and data."""
    whole = whole or answer_of(path, body)
    if path == '/v1/chat/completions':
        chunk = lambda delta, **more: (None, {'id': 'c', 'object': 'chat.completion.chunk', 'created': 1, 'model': body.get('model'),
            'choices': [{'index': 0, 'delta': delta, 'finish_reason': None, **more}]})
        message = whole['choices'][0]['message']
        if message['content'] is None:
            yield chunk({'role': 'assistant', 'tool_calls': [{'index': 0, **message['tool_calls'][0]}]})
        else:
            for word in ['Hello', ' there', '.']: yield chunk({'role': 'assistant', 'content': word})
        yield chunk({}, finish_reason=whole['choices'][0]['finish_reason'])
        yield None, {'id': 'c', 'object': 'chat.completion.chunk', 'created': 1, 'model': body.get('model'), 'choices': [], 'usage': whole['usage']}
        yield None, '[DONE]'
    elif path == '/v1/messages':
        block = whole['content'][0]
        yield 'message_start', {'type': 'message_start', 'message': {**whole, 'content': [], 'stop_reason': None, 'usage': {'input_tokens': 11, 'output_tokens': 1}}}
        if block['type'] == 'text':
            yield 'content_block_start', {'type': 'content_block_start', 'index': 0, 'content_block': {'type': 'text', 'text': ''}}
            for word in ['Hello', ' there', '.']:
                yield 'content_block_delta', {'type': 'content_block_delta', 'index': 0, 'delta': {'type': 'text_delta', 'text': word}}
        else:
            yield 'content_block_start', {'type': 'content_block_start', 'index': 0, 'content_block': {**block, 'input': {}}}
            yield 'content_block_delta', {'type': 'content_block_delta', 'index': 0, 'delta': {'type': 'input_json_delta', 'partial_json': json.dumps(block['input'])}}
        yield 'content_block_stop', {'type': 'content_block_stop', 'index': 0}
        yield 'message_delta', {'type': 'message_delta', 'delta': {'stop_reason': whole['stop_reason'], 'stop_sequence': None}, 'usage': {'output_tokens': 22}}
        yield 'message_stop', {'type': 'message_stop'}
    else:
        item = whole['output'][0]
        if item['type'] != 'message':
            yield 'response.created', {'type': 'response.created', 'sequence_number': 0, 'response': {**whole, 'status': 'in_progress', 'output': []}}
            yield 'response.output_item.added', {'type': 'response.output_item.added', 'sequence_number': 1, 'output_index': 0, 'item': {**item, 'arguments': ''}}
            yield 'response.function_call_arguments.done', {'type': 'response.function_call_arguments.done', 'sequence_number': 2, 'item_id': item['id'], 'output_index': 0, 'arguments': item['arguments']}
            yield 'response.output_item.done', {'type': 'response.output_item.done', 'sequence_number': 3, 'output_index': 0, 'item': item}
            yield 'response.completed', {'type': 'response.completed', 'sequence_number': 4, 'response': whole}
            return
        yield 'response.created', {'type': 'response.created', 'sequence_number': 0, 'response': {**whole, 'status': 'in_progress', 'output': []}}
        yield 'response.output_item.added', {'type': 'response.output_item.added', 'sequence_number': 1, 'output_index': 0, 'item': {**item, 'content': []}}
        part = {'item_id': 'm', 'output_index': 0, 'content_index': 0}
        yield 'response.content_part.added', {'type': 'response.content_part.added', 'sequence_number': 1, **part, 'part': {**item['content'][0], 'text': ''}}
        for number, word in enumerate(['Hello', ' there', '.']):
            yield 'response.output_text.delta', {'type': 'response.output_text.delta', 'sequence_number': 2 + number, **part, 'delta': word}
        yield 'response.output_text.done', {'type': 'response.output_text.done', 'sequence_number': 5, **part, 'text': 'Hello there.'}
        yield 'response.content_part.done', {'type': 'response.content_part.done', 'sequence_number': 5, **part, 'part': item['content'][0]}
        yield 'response.output_item.done', {'type': 'response.output_item.done', 'sequence_number': 5, 'output_index': 0, 'item': item}
        yield 'response.completed', {'type': 'response.completed', 'sequence_number': 6, 'response': whole}


async def serve(reader, writer):
    try:
        while line := await reader.readline():
            method, target, _ = line.decode().split(' ')
            headers = {}
            while (line := await reader.readline()) not in (b'\r\n', b''):
                name, value = line.decode('latin-1').strip().split(':', 1)
                headers[name.lower()] = value.strip()
            raw = await reader.readexactly(int(headers.get('content-length', 0)))
            with open(folder + '/seen', 'a') as seen:
                seen.write(json.dumps([method, target, headers, raw.decode('latin-1')]) + '\n')
            path, _, _ = target.partition('?')
            how, path = path[1:].split('/', 1)
            try: body = json.loads(raw or b'{}')
            except ValueError: body = {}
            if not isinstance(body, dict): body = {}
            if not await answer(reader, writer, how, '/' + path, body, headers): break
            await writer.drain()
        writer.close()
    except (ConnectionError, EOFError, ValueError, asyncio.IncompleteReadError): writer.close()


async def answer(reader, writer, how, path, body, headers):
    """Sends the response. Returns true if the connection stays open."""
    def plain(text, status='200 OK', extra=''):
        writer.write(f'HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n{extra}\r\n{text}'.encode())
    def chunk(data): writer.write(b'%x\r\n%s\r\n' % (len(data), data))
    def event(name, data):
        text = data if isinstance(data, str) else json.dumps(data)
        chunk(((f'event: {name}\n' if name else '') + f'data: {text}\n\n').encode())
    head = b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nSet-Cookie: a=b\r\nOpenAI-Organization: org\r\nX-Request-Id: r1\r\nTransfer-Encoding: chunked\r\n\r\n'
    if how == 'hang': await reader.read()
    elif how == 'reset': return False
    elif how == 'redirect': plain('', '302 Found', 'Location: http://10.99.0.1:1/\r\n')
    elif how in ('401', '429', '500'): plain('{"error": {"message": "no"}}', how + ' No', 'Retry-After: 7\r\n')
    elif how == 'echo': plain(json.dumps({'error': {'message': 'Incorrect API key provided: ' + headers['authorization']}}), '401 Bad ' + headers['authorization'], 'X-Request-Id: ' + headers['authorization'] + '\r\n')
    elif how == 'page': writer.write(b'HTTP/1.1 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 4\r\n\r\n<p/>')
    elif how == 'bad':
        writer.write(head + b'zz\r\nnot a chunk\r\n')
        return False
    elif how == 'half':
        writer.write(head)
        event(None, {'n': 1})
        writer.write(b'50\r\ndata: only a pa')
        return False
    elif how == 'idle':
        writer.write(head)
        event(None, {'n': 1})
        await writer.drain()
        await reader.read()
    elif how == 'slow':
        writer.write(head)
        for n in range(4):
            event(None, {'at': time.time()})
            await writer.drain()
            await asyncio.sleep(0.3)
        writer.write(b'0\r\n\r\n')
    elif how == 'endless':
        writer.write(head)
        try:
            while True:
                event(None, {'n': 1})
                await writer.drain()
                await asyncio.sleep(0.02)
        finally: open(folder + '/left', 'w').close()
    elif how == 'big':
        writer.write(head)
        block = b'data: ' + b'x' * 65528 + b'\n\n'
        for _ in range(body.get('blocks', 1)):
            chunk(block)
            await writer.drain()
        writer.write(b'0\r\n\r\n')
    elif body.get('stream'):
        writer.write(head)
        whole = agents_turn(path, body) if how == 'agent' else None
        for name, data in events_of(path, body, whole): event(name, data)
        writer.write(b'0\r\n\r\n')
    else: plain(json.dumps(agents_turn(path, body) if how == 'agent' else answer_of(path, body)), extra='Set-Cookie: a=b\r\nOpenAI-Organization: org\r\nX-Request-Id: r1\r\n')
    return True


async def main():
    await asyncio.start_server(serve, '10.99.0.1', port, limit=1 << 26)
    print('ready', flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
