//! Streams of messages.

use std::time::Duration;

use futures_util::stream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Code, Response, Status};

use crate::error::CallError;

/// Returns the messages of `receiver` as a stream.
pub(crate) fn stream_of<M: Send + 'static>(
    receiver: mpsc::Receiver<M>,
) -> impl stream::Stream<Item = M> + Send + 'static {
    stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|message| (message, receiver))
    })
}

/// Time within which a stream must begin.
const BEGINNING: Duration = Duration::from_secs(30);

/// Waits up to 30 seconds for a stream to begin.
pub(crate) async fn begun<T>(
    call: &'static str,
    beginning: impl Future<Output = Result<Response<T>, Status>>,
) -> Result<T, CallError> {
    match timeout(BEGINNING, beginning).await {
        Ok(Ok(response)) => Ok(response.into_inner()),
        Ok(Err(status)) => Err(CallError::new(call, &status)),
        Err(_) => Err(CallError::of(
            call,
            Code::DeadlineExceeded,
            "no answer within 30 seconds",
        )),
    }
}
