"""A gRPC service for the tests, and its client: `calls.py FOLDER PORT[:CERTIFICATE]…`; without arguments it is
the prelude of its clients."""

import sys, threading, time
from concurrent import futures

import grpc

SERVICE = 'lab.Calls'


def note(context, what):
    with open(f'{sys.argv[1]}/calls', 'a') as calls: calls.write(what + ' ' + str(dict(context.invocation_metadata()).get('x-key', '-')) + '\n')


def one(request, context):
    note(context, 'one')
    if request == b'fail': context.abort(grpc.StatusCode.FAILED_PRECONDITION, 'as asked')
    if request.startswith(b'sleep'):
        context.add_callback(lambda: note(context, f'over {context.is_active()}'))
        time.sleep(float(request[5:]))
    context.set_trailing_metadata((('x-end', 'yes'),))
    return request


def many(request, context):
    note(context, 'many')
    key = dict(context.invocation_metadata()).get('x-key', '-')
    for n in range(5): yield f'{n} {key}'.encode()


def count(requests, context):
    note(context, 'count')
    return str(sum(len(request) for request in requests)).encode()


def talk(requests, context):
    note(context, 'talk')
    key = dict(context.invocation_metadata()).get('x-key', '-').encode()
    for request in requests: yield request + key


def serve(ports):
    handlers = {'One': grpc.unary_unary_rpc_method_handler(one), 'Many': grpc.unary_stream_rpc_method_handler(many),
                'Count': grpc.stream_unary_rpc_method_handler(count), 'Talk': grpc.stream_stream_rpc_method_handler(talk)}
    options = [('grpc.max_receive_message_length', -1), ('grpc.max_send_message_length', -1)]
    server = grpc.server(futures.ThreadPoolExecutor(16), options=options)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    for port in ports:
        number, _, certificate = port.partition(':')
        read = lambda kind: open(f'{sys.argv[1]}/{certificate}.{kind}', 'rb').read()
        if certificate: server.add_secure_port(f'10.99.0.1:{number}', grpc.ssl_server_credentials([(read('key'), read('pem'))]))
        else: server.add_insecure_port(f'10.99.0.1:{number}')
    server.start()
    print('ready', flush=True)
    server.wait_for_termination()


if len(sys.argv) > 2: serve(sys.argv[2:])

options = [('grpc.max_receive_message_length', -1), ('grpc.max_send_message_length', -1)]
secure = lambda: grpc.secure_channel('web.test:443', grpc.ssl_channel_credentials(), options)
clear = lambda: grpc.insecure_channel('web.test:8080', options)
path = lambda name: f'/{SERVICE}/{name}'


def said(call):
    """Returns the result of a call, or its status and message."""
    try: return call()
    except grpc.RpcError as error: return f'{error.code().name} {error.details()}'
