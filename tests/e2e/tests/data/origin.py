"""An HTTP/1.1 origin for the tests: `origin.py FOLDER PORT[:CERTIFICATE]…`. The path selects the response; each request that
was read completely is a line of FOLDER/seen."""

import asyncio, gzip, hashlib, json, ssl, sys, time, zlib

folder, ports = sys.argv[1], sys.argv[2:]
stored = {}


async def body(reader, headers, digest):
    length = 0
    trailers = {}
    if headers.get('transfer-encoding') == 'chunked':
        while size := int((await reader.readline()).split(b';')[0], 16):
            digest.update(await reader.readexactly(size))
            await reader.readexactly(2)
            length += size
        while (line := await reader.readline()) != b'\r\n':
            name, value = line.decode().strip().split(': ', 1)
            trailers[name.lower()] = value
    else:
        left = int(headers.get('content-length', 0))
        while left:
            data = await reader.read(min(left, 1 << 16))
            if not data: raise EOFError
            digest.update(data)
            left -= len(data)
            length += len(data)
    return length, trailers


async def serve(reader, writer):
    with open(folder + '/connections', 'a') as connections: connections.write('.')
    try:
        while line := await reader.readline():
            method, target, _ = line.decode().split(' ')
            headers = {}
            while (line := await reader.readline()) not in (b'\r\n', b''):
                name, value = line.decode('latin-1').strip().split(':', 1)
                headers[name.lower()] = value.strip()
            path, _, query = target.partition('?')
            if path == '/early':
                writer.write(b'HTTP/1.1 413 Too Much\r\nContent-Length: 4\r\nConnection: close\r\n\r\nstop')
                await writer.drain()
                writer.close()
                return
            digest = hashlib.sha256()
            length, trailers = await body(reader, headers, digest)
            with open(folder + '/seen', 'a') as seen:
                seen.write(json.dumps([method, target, headers, length, trailers]) + '\n')
            if not await answer(reader, writer, method, path, query, headers, digest.hexdigest()): break
            await writer.drain()
        writer.close()
    except (ConnectionError, EOFError, ValueError, asyncio.IncompleteReadError, ssl.SSLError): writer.close()


async def answer(reader, writer, method, path, query, headers, digest):
    """Sends the response. Returns true if the connection stays open."""
    def plain(text, status='200 OK', extra=''):
        writer.write(f'HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n{extra}\r\n{text}'.encode())
    if path == '/store':
        stored[query] = headers['x-key']
        plain('stored')
    elif path == '/stored': plain(stored[query])
    elif path == '/head': writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n')
    elif path in ('/204', '/304'): writer.write(f'HTTP/1.1 {path[1:]} X\r\nETag: "x"\r\n\r\n'.encode())
    elif path == '/close':
        writer.write(b'HTTP/1.1 200 OK\r\n\r\nuntil the end')
        return False
    elif path == '/trailers':
        writer.write(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n5\r\nhello\r\n0\r\nX-End: yes\r\n\r\n')
    elif path == '/coded':
        # In a coding or character set that nobody has asked for.
        text = f'<p>{headers.get("x-back", "")}</p>'
        name, _, charset = query.partition(';')
        coded = {'gzip': gzip.compress, 'deflate': zlib.compress, 'raw': lambda text: zlib.compress(text)[2:-4], 'compress': bytes, '': bytes}[name](text.encode(charset or 'utf-8'))
        fields = f'Content-Encoding: {"deflate" if name == "raw" else name}\r\n' if name else ''
        writer.write(f'HTTP/1.1 200 OK\r\nContent-Type: text/html; charset={charset or "utf-8"}\r\n{fields}Content-Length: {len(coded)}\r\n\r\n'.encode() + coded)
    elif path == '/named': plain('named', extra=f'Trailer: {headers.get("x-back", "")}\r\n')
    elif path == '/hints':
        writer.write(b'HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n')
        plain('after hints')
    elif path == '/101':
        writer.write(b'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nraw')
    elif path == '/upgrade' and 'upgrade' in headers:
        writer.write(f'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: {headers["upgrade"]}\r\nSec-WebSocket-Accept: x\r\n\r\nfirst'.encode())
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        return False
    elif path == '/more': writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged')
    elif path == '/cut':
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this')
        return False
    elif path == '/cutchunk':
        writer.write(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n50\r\nonly')
        return False
    elif path == '/both': writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n')
    elif path == '/big':
        size = int(query)
        writer.write(f'HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n'.encode())
        block = bytes(range(256)) * 256
        while size:
            writer.write(block[:size])
            size -= min(size, len(block))
            await writer.drain()
    elif path == '/sse':
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n')
        for pause in query.split(','):
            await asyncio.sleep(float(pause))
            event = f'data: {time.monotonic()}\n\n'.encode()
            writer.write(b'%x\r\n%s\r\n' % (len(event), event))
            await writer.drain()
        writer.write(b'0\r\n\r\n')
    elif path == '/slow':
        for byte in b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello':
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.01)
    elif path.startswith('/reflect'):
        # The whole request in chunks of the requested size, also in the head and behind the body.
        text = json.dumps([method, f'{path}?{query}', headers]).encode()
        step = int(headers.get('x-step', len(text)))
        parts = [text[at:at + step] for at in range(0, len(text), step)]
        back = headers.get('x-back', '')
        writer.write(f'HTTP/1.1 200 Back {back}\r\nX-Back: {back}\r\n{back or "x"}: x\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n'.encode())
        for part in parts:
            writer.write(b'%x\r\n%s\r\n' % (len(part), part))
            await writer.drain()
        writer.write(f'0\r\nX-End: {back}\r\n\r\n'.encode())
    elif path.startswith('/auth') and 'authorization' not in headers: plain('', '401 Unauthorized', 'WWW-Authenticate: Basic realm="x"\r\n')
    elif path == '/redirect': plain('', '302 Found', f'Location: {query}\r\n')
    elif path == '/upload': plain(digest)
    elif path == '/silent': await reader.read()
    elif path == '/once':
        plain('once')
        return False
    else: plain('hello')
    return True


async def main():
    for port in ports:
        port, _, certificate = port.partition(':')
        context = None
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(f'{folder}/{certificate}.pem', f'{folder}/{certificate}.key')
            context.set_alpn_protocols(['http/1.1'])
        await asyncio.start_server(serve, '10.99.0.1', int(port), ssl=context, limit=1 << 20)
    print('ready', flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
