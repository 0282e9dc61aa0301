//! A session without logic: what relays cost where nothing but the protocol's library stands
//! between, for measurements.

use std::net::SocketAddr;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

use crate::proto::v1::open_shell_client::OpenShellClient;
use crate::proto::v1::{
    RelayFrame, RelayInit, RelayOpen, RelayOpenResult, SupervisorHello, SupervisorMessage,
    gateway_message, relay_frame, supervisor_message,
};

/// Begins a session with the gateway at `address`, and writes what each relay carries to `target`,
/// until the gateway ends it.
pub async fn serve(address: SocketAddr, target: SocketAddr) {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let channel = endpoint
        .initial_stream_window_size(128 * 1024)
        .initial_connection_window_size(64 * 1024 * 1024);
    let mut client = OpenShellClient::new(channel.connect().await.unwrap());
    let (sender, messages) = mpsc::channel(16);
    let message = |payload| SupervisorMessage {
        payload: Some(payload),
    };
    let hello = SupervisorHello {
        sandbox_id: "bench".to_owned(),
        instance_id: "plain".to_owned(),
    };
    sender
        .send(message(supervisor_message::Payload::Hello(hello)))
        .await
        .unwrap();
    let mut session = client
        .connect_supervisor(ReceiverStream::new(messages))
        .await
        .unwrap()
        .into_inner();
    while let Ok(Some(heard)) = session.message().await {
        if let Some(gateway_message::Payload::RelayOpen(RelayOpen { channel_id, .. })) =
            heard.payload
        {
            let result = RelayOpenResult {
                channel_id: channel_id.clone(),
                success: true,
                error: String::new(),
            };
            sender
                .send(message(supervisor_message::Payload::RelayOpenResult(
                    result,
                )))
                .await
                .unwrap();
            let (frames, to_gateway) = mpsc::channel(4);
            let init = relay_frame::Payload::Init(RelayInit { channel_id });
            frames
                .send(RelayFrame {
                    payload: Some(init),
                })
                .await
                .unwrap();
            let mut incoming = client
                .relay_stream(ReceiverStream::new(to_gateway))
                .await
                .unwrap()
                .into_inner();
            let mut server = TcpStream::connect(target).await.unwrap();
            while let Ok(Some(frame)) = incoming.message().await {
                if let Some(relay_frame::Payload::Data(data)) = frame.payload {
                    server.write_all(&data).await.unwrap();
                }
            }
        }
    }
}
