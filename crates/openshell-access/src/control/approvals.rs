//! Questions to a person on the control socket.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use super::wire::{Answer, Answered, Listing, Reply, Request};
use crate::packet_socket::PacketSocket;

/// The questions of a sandbox, as the control socket uses them.
pub trait Approvals: fmt::Debug + Send + Sync {
    /// Lists them, because somebody looks at them once.
    fn look(&self) -> Listing;

    /// Follows them. While somebody does, requests wait longer.
    fn follow(&self) -> Box<dyn Follow>;

    /// Begins an answer: until the value is dropped, the sandbox waits a moment before it ends.
    fn begin(&self) -> Box<dyn Send>;

    /// Gives the answer of the user with this id. Blocks.
    fn answer(&self, answer: Answer, uid: u32) -> Answered;
}

/// Somebody who follows the questions.
pub trait Follow: Send {
    /// Waits until they have changed since the last call.
    fn changed(&mut self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// Lists them.
    fn list(&self) -> Listing;
}

/// Serves a client whose first message about questions is `request`.
///
/// # Errors
/// The client has gone.
pub(super) async fn serve(
    approvals: Option<&Arc<dyn Approvals>>,
    client: &PacketSocket,
    request: Request,
    uid: u32,
) -> io::Result<()> {
    let Some(approvals) = approvals else {
        return client.send(&Reply::AsksNobody, &[]).await;
    };
    match request {
        Request::Questions { is_following: true } => follow(approvals, client, uid).await,
        Request::Questions {
            is_following: false,
        } => client.send(&Reply::Questions(approvals.look()), &[]).await,
        Request::Answer(answer) => give(approvals, client, answer, uid).await,
        Request::Describe | Request::Exec(_) | Request::Signal(_) | Request::Continue { .. } => {
            Ok(())
        }
    }
}

/// Lists the questions whenever they change, and takes answers, until the client has gone.
async fn follow(approvals: &Arc<dyn Approvals>, client: &PacketSocket, uid: u32) -> io::Result<()> {
    let mut following = approvals.follow();
    loop {
        let listing = following.list();
        client.send(&Reply::Questions(listing), &[]).await?;
        loop {
            tokio::select! {
                () = following.changed() => break,
                request = client.receive::<Request>() => match request? {
                    Some((Request::Answer(answer), _)) => {
                        give(approvals, client, answer, uid).await?;
                    }
                    Some(_) | None => return Ok(()),
                },
            }
        }
    }
}

/// Gives an answer, and tells the client what became of it.
async fn give(
    approvals: &Arc<dyn Approvals>,
    client: &PacketSocket,
    answer: Answer,
    uid: u32,
) -> io::Result<()> {
    let _begun = approvals.begin();
    let approvals = Arc::clone(approvals);
    let answered = tokio::task::spawn_blocking(move || approvals.answer(answer, uid));
    let answered = answered.await.map_err(io::Error::other)?;
    client.send(&Reply::Answered(answered), &[]).await
}
