"""A gateway made of grpcio and protobuf's own messages: `gateway.py FOLDER ADDRESS GENERATION`. FOLDER/descriptors describes the
messages. Each message it gets is a line of FOLDER/seen: its type, whether protobuf encodes it to the same bytes, and its content.
What it sends is kept beside it, in TYPE.sent."""

import base64, json, sys, threading, time
from concurrent import futures

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory

folder, address, generation = sys.argv[1:]
pool = descriptor_pool.DescriptorPool()
for file in descriptor_pb2.FileDescriptorSet.FromString(open(folder + '/descriptors', 'rb').read()).file: pool.Add(file)
factory, lock = message_factory.MessageFactory(pool), threading.Lock()
TODAY = generation == 'today'


def encoded(descriptor, content):
    message = json_format.ParseDict(content, factory.GetPrototype(descriptor)())
    data = message.SerializeToString(deterministic=True)
    with open(f'{folder}/{descriptor.full_name}.sent', 'wb') as file: file.write(data)
    return data


def heard(descriptor, data):
    message = factory.GetPrototype(descriptor).FromString(data)
    unknown = len(message.UnknownFields())
    content = json_format.MessageToDict(message, preserving_proto_field_name=True)
    same = message.SerializeToString(deterministic=True) == data and unknown == 0
    with lock, open(folder + '/seen', 'a') as file: file.write(json.dumps({'type': descriptor.name, 'same': same, 'content': content}) + '\n')
    return content


rule = {'allow': {'method': 'GET', 'path': '/a'}}
endpoint = {'host': 'web.test', 'port': 8080, 'allowed_ips': ['10.99.0.1'], 'protocol': 'rest', 'enforcement': 'enforce', 'rules': [rule]}
policy = {'version': 1, 'filesystem': {'include_workdir': True, 'read_only': ['/usr', '/etc'], 'read_write': ['/tmp']},
    'network_policies': {'web': {'name': 'web', 'endpoints': [endpoint], 'binaries': [{'path': '/usr/bin/curl'}]}}}
policy = encoded(pool.FindMessageTypeByName('openshell.sandbox.v1.SandboxPolicy'), policy)
# Bytes are in base64 here (ProtoJSON).
config = {'policy': base64.b64encode(policy).decode(), 'version': 1, 'policy_hash': 'hash1', 'config_revision': '1',
    'settings': {'ocsf_json_enabled': {'value': {'bool_value': False}}}}
credentials = {'environment': {'API_KEY': 's3cret-Value', 'REGION': 'north'}, 'credential_expires_at_ms': {'API_KEY': '4102444800000'},
    'non_secret_environment_keys': ['REGION']}
if TODAY:
    config.update(provider_env_revision='1', workspace='team')
    credentials.update(provider_env_revision='1')
ANSWERS = {'GetSandboxConfig': config, 'GetSandboxProviderEnvironment': credentials, 'ReportPolicyStatus': {},
    'SubmitPolicyAnalysis': {'accepted_chunks': 1}, 'PushSandboxLogs': {},
    'GetInferenceBundle': {'routes': [{'name': 'r', 'base_url': 'mock://x', 'protocols': ['openai_chat_completions'], 'model_id': 'm1'}], 'revision': 'r1'}}
if TODAY: ANSWERS.update(ReportMainProcessExit={}, ConnectSupervisor=None)


def session(method, requests):
    for data in requests:
        if 'hello' in heard(method.input_type, data):
            yield encoded(method.output_type, {'session_accepted': {'session_id': 's1', 'heartbeat_interval_secs': 1}})


def handler(method):
    if method.name == 'ConnectSupervisor': return grpc.stream_stream_rpc_method_handler(lambda requests, _: session(method, requests))
    def answer(data, _):
        for one in [data] if isinstance(data, bytes) else data: heard(method.input_type, one)
        return encoded(method.output_type, ANSWERS[method.name])
    is_streamed = method.name == 'PushSandboxLogs'
    return (grpc.stream_unary_rpc_method_handler if is_streamed else grpc.unary_unary_rpc_method_handler)(answer)


server = grpc.server(futures.ThreadPoolExecutor(16))
for name in ['openshell.v1.OpenShell', 'openshell.inference.v1.Inference']:
    methods = pool.FindServiceByName(name).methods
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(name, {one.name: handler(one) for one in methods if one.name in ANSWERS})])
port = server.add_insecure_port(address)
server.start()
print(port, flush=True)
while True: time.sleep(3600)
