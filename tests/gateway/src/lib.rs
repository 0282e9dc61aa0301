//! A gateway for tests: it plays both generations, records all that it hears, and fails as it is
//! told.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test fails by its panic"
)]

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use openshell_policy::yaml;
pub use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_stream::{Stream, StreamExt};
use tonic::transport::{Certificate, Identity, ServerTlsConfig};
use tonic::{Code, Request, Response, Status, Streaming};

#[allow(
    missing_docs,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated"
)]
pub mod proto {
    pub mod sandbox {
        pub mod v1 {
            tonic::include_proto!("openshell.sandbox.v1");
        }
    }
    pub mod inference {
        pub mod v1 {
            tonic::include_proto!("openshell.inference.v1");
        }
    }
    pub mod v1 {
        tonic::include_proto!("openshell.v1");
    }
}

pub mod plain;

use proto::inference::v1::inference_server::{Inference, InferenceServer};
use proto::inference::v1::{GetInferenceBundleRequest, GetInferenceBundleResponse};
use proto::sandbox::v1::{GetSandboxConfigRequest, GetSandboxConfigResponse, SandboxPolicy};
use proto::v1::open_shell_server::{OpenShell, OpenShellServer};
use proto::v1::*;

/// The generations of gateways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Generation {
    /// Without tokens and sessions.
    April,
    /// With both.
    #[default]
    Today,
}

/// What the gateway answers.
#[derive(Clone, Debug, Default)]
pub struct Answers {
    /// Its generation.
    pub generation: Generation,
    /// Everything in force.
    pub config: GetSandboxConfigResponse,
    /// Credentials.
    pub environment: GetSandboxProviderEnvironmentResponse,
    /// Routes to models.
    pub bundle: GetInferenceBundleResponse,
    /// Tokens of which a call must carry one; none are asked for while it is empty.
    pub tokens: Vec<String>,
    /// Token that is issued, or that renews another.
    pub issued: IssueSandboxTokenResponse,
    /// Calls that fail, each with the code and the number of times.
    pub faults: BTreeMap<&'static str, (i32, usize)>,
    /// Calls that are not answered.
    pub silent: Vec<&'static str>,
    /// Lines that were proposed, and what was decided about them.
    pub drafts: Vec<PolicyChunk>,
    /// Why proposed lines are not taken, if none are.
    pub refuses_lines: Option<String>,
}

/// Everything that the gateway has heard.
#[derive(Clone, Debug, Default)]
pub struct Heard {
    /// Names of the calls, in their order, without repetitions that follow each other.
    pub calls: Vec<&'static str>,
    /// Statuses of policy versions.
    pub statuses: Vec<ReportPolicyStatusRequest>,
    /// Policies that the sandbox has sent.
    pub updates: Vec<UpdateConfigRequest>,
    /// Lines of the log.
    pub logs: Vec<SandboxLogLine>,
    /// Denials and activity.
    pub analyses: Vec<SubmitPolicyAnalysisRequest>,
    /// Beginnings of sessions.
    pub hellos: Vec<SupervisorHello>,
    /// Heartbeats in sessions.
    pub heartbeats: usize,
    /// Results of relays that were asked for.
    pub relay_results: Vec<RelayOpenResult>,
    /// Exits of the main process.
    pub exits: Vec<ReportMainProcessExitRequest>,
    /// Tokens that calls carried, without repetitions that follow each other.
    pub tokens: Vec<String>,
}

#[derive(Default)]
struct State {
    answers: Answers,
    heard: Heard,
    /// The session that is open, and its number.
    session: Option<mpsc::Sender<Result<GatewayMessage, Status>>>,
    /// Relays that wait for their stream.
    relays: BTreeMap<String, oneshot::Sender<Relay>>,
    next_channel: usize,
}

/// A relay to a server inside a sandbox.
#[derive(Debug)]
pub struct Relay {
    /// Frames to the sandbox.
    pub to: mpsc::Sender<Result<RelayFrame, Status>>,
    /// Frames from it.
    pub from: Streaming<RelayFrame>,
}

/// A gateway.
#[derive(Clone, Default)]
pub struct Gateway(Arc<(Mutex<State>, Condvar)>);

/// A gateway that serves; dropping it ends that.
pub struct Serving {
    runtime: Option<tokio::runtime::Runtime>,
    /// The runtime for relays of a test.
    pub handle: tokio::runtime::Handle,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.runtime
            .take()
            .expect("it is taken once")
            .shutdown_background();
    }
}

/// The longest wait for something to be heard.
const PATIENCE: Duration = Duration::from_secs(60);

impl Gateway {
    /// A gateway that answers with `answers`.
    #[must_use]
    pub fn new(answers: Answers) -> Self {
        let gateway = Self::default();
        gateway.answer(|before| *before = answers);
        gateway
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap()
    }

    /// Changes the answers.
    pub fn answer<T>(&self, change: impl FnOnce(&mut Answers) -> T) -> T {
        change(&mut self.state().answers)
    }

    /// Puts another policy in force, as the next version.
    pub fn set_policy(&self, policy: SandboxPolicy) {
        self.answer(|answers| {
            answers.config.version += 1;
            answers.config.config_revision += 1;
            answers.config.policy_hash = format!("hash{}", answers.config.version);
            answers.config.policy = Some(policy.encode_to_vec());
        });
    }

    /// Waits for a proposed line on which nobody has decided.
    ///
    /// # Panics
    /// There is none for a minute.
    #[must_use]
    pub fn draft(&self) -> PolicyChunk {
        let is_pending = |chunk: &&PolicyChunk| chunk.status == "pending";
        let begin = Instant::now();
        let mut state = self.state();
        loop {
            let mut drafts = state.answers.drafts.iter();
            if let Some(draft) = drafts.find(is_pending) {
                return draft.clone();
            }
            let left = PATIENCE.checked_sub(begin.elapsed());
            let left = left.unwrap_or_else(|| panic!("no draft: {:#?}", state.heard));
            state = self.0.1.wait_timeout(state, left).unwrap().0;
        }
    }

    /// Permits the proposed line `draft`, which is part of the policy from then on.
    ///
    /// # Panics
    /// There is no policy.
    pub fn approve(&self, draft: &PolicyChunk) {
        let mut policy = self.answer(|answers| {
            let policy = answers.config.policy.clone().unwrap();
            SandboxPolicy::decode(policy.as_slice()).unwrap()
        });
        let rule = draft.proposed_rule.clone().unwrap();
        policy
            .network_policies
            .insert(draft.rule_name.clone(), rule);
        self.decide(draft, "approved", "");
        self.set_policy(policy);
    }

    /// Does not permit the proposed line `draft`, for this `reason`.
    pub fn reject(&self, draft: &PolicyChunk, reason: &str) {
        self.decide(draft, "rejected", reason);
    }

    fn decide(&self, draft: &PolicyChunk, status: &str, reason: &str) {
        self.answer(|answers| {
            let mut drafts = answers.drafts.iter_mut();
            let draft = drafts.find(|known| known.id == draft.id).unwrap();
            status.clone_into(&mut draft.status);
            reason.clone_into(&mut draft.rejection_reason);
        });
    }

    /// Everything heard so far.
    #[must_use]
    pub fn heard(&self) -> Heard {
        self.state().heard.clone()
    }

    /// Waits until what was heard is `enough`.
    ///
    /// # Panics
    /// That takes longer than a minute.
    pub fn wait(&self, enough: impl Fn(&Heard) -> bool) -> Heard {
        let mut state = self.state();
        let begin = Instant::now();
        while !enough(&state.heard) {
            let left = PATIENCE
                .checked_sub(begin.elapsed())
                .unwrap_or_else(|| panic!("not heard: {:#?}", state.heard));
            state = self.0.1.wait_timeout(state, left).unwrap().0;
        }
        state.heard.clone()
    }

    /// Prints each call from now on.
    pub fn print_calls(&self) -> ! {
        let mut state = self.state();
        loop {
            for call in state.heard.calls.drain(..) {
                println!("{call}");
            }
            for line in state.heard.logs.drain(..) {
                println!("  {} {}", line.level, line.message);
            }
            for status in state.heard.statuses.drain(..) {
                println!("  {status:?}");
            }
            for analysis in state.heard.analyses.drain(..) {
                println!("  {analysis:?}");
            }
            state = self.0.1.wait(state).unwrap();
        }
    }

    /// Serves at `listener`.
    ///
    /// # Panics
    /// The listener cannot be used.
    #[must_use]
    pub fn serve(&self, listener: TcpListener) -> Serving {
        self.serve_with(listener, None)
    }

    /// Serves at `listener`, inside TLS if that is given.
    ///
    /// # Panics
    /// The listener or the certificates cannot be used.
    #[must_use]
    pub fn serve_with(&self, listener: TcpListener, tls: Option<ServerTlsConfig>) -> Serving {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        listener.set_nonblocking(true).unwrap();
        let gateway = self.clone();
        runtime.spawn(async move {
            let incoming =
                TcpListenerStream::new(tokio::net::TcpListener::from_std(listener).unwrap());
            let incoming = incoming.map(|client| {
                if let Ok(client) = &client {
                    client.set_nodelay(true).unwrap();
                }
                client
            });
            let mut server = tonic::transport::Server::builder();
            if let Some(tls) = tls {
                server = server.tls_config(tls).unwrap();
            }
            server
                .add_service(
                    OpenShellServer::new(gateway.clone()).max_decoding_message_size(1 << 26),
                )
                .add_service(InferenceServer::new(gateway).max_encoding_message_size(1 << 27))
                .serve_with_incoming(incoming)
                .await
        });
        Serving {
            handle: runtime.handle().clone(),
            runtime: Some(runtime),
        }
    }

    /// Ends the open session, as a gateway that restarts.
    pub fn end_session(&self) {
        drop(self.state().session.take());
    }

    /// Says something in the open session.
    ///
    /// # Panics
    /// There is none.
    pub fn say(&self, payload: gateway_message::Payload) {
        let sender = self.state().session.clone().expect("a session is open");
        sender
            .try_send(Ok(GatewayMessage {
                payload: Some(payload),
            }))
            .unwrap();
    }

    /// Asks for a relay to `target`, and waits for its stream; the error of the sandbox if it
    /// refuses.
    ///
    /// # Errors
    /// The sandbox's reason.
    ///
    /// # Panics
    /// The sandbox does not answer.
    pub fn relay(
        &self,
        serving: &Serving,
        target: Option<relay_open::Target>,
    ) -> Result<Relay, String> {
        self.relay_by(&serving.handle, target)
    }

    /// The same on the runtime of `handle`.
    ///
    /// # Errors
    /// The sandbox refuses it, for this reason.
    ///
    /// # Panics
    /// It does not answer.
    pub fn relay_by(
        &self,
        handle: &tokio::runtime::Handle,
        target: Option<relay_open::Target>,
    ) -> Result<Relay, String> {
        let (sender, receiver) = oneshot::channel();
        let channel_id = {
            let mut state = self.state();
            state.next_channel += 1;
            let id = format!("channel-{}", state.next_channel);
            state.relays.insert(id.clone(), sender);
            id
        };
        self.say(gateway_message::Payload::RelayOpen(RelayOpen {
            channel_id: channel_id.clone(),
            target,
            ..RelayOpen::default()
        }));
        let heard = self.wait(|heard| {
            heard
                .relay_results
                .iter()
                .any(|result| result.channel_id == channel_id)
        });
        let result = heard
            .relay_results
            .into_iter()
            .find(|result| result.channel_id == channel_id)
            .unwrap();
        if result.success {
            Ok(handle
                .block_on(async { tokio::time::timeout(PATIENCE, receiver).await })
                .unwrap()
                .unwrap())
        } else {
            Err(result.error)
        }
    }

    fn hear(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.1.notify_all();
    }

    /// Notes a call, and fails it if it should.
    async fn called<M>(&self, call: &'static str, request: &Request<M>) -> Result<(), Status> {
        let is_later = [
            "ConnectSupervisor",
            "RelayStream",
            "ReportMainProcessExit",
            "IssueSandboxToken",
            "RefreshSandboxToken",
        ];
        let token = request
            .metadata()
            .get("authorization")
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let token = token.trim_start_matches("Bearer ").to_owned();
        let (result, is_silent) = {
            let mut state = self.state();
            if state.heard.calls.last() != Some(&call) {
                state.heard.calls.push(call);
            }
            if state.heard.tokens.last() != Some(&token) {
                state.heard.tokens.push(token.clone());
            }
            let is_silent = state.answers.silent.contains(&call);
            let answers = &mut state.answers;
            let result = if answers.generation == Generation::April && is_later.contains(&call) {
                Err(Status::unimplemented("not in this generation"))
            } else if !answers.tokens.is_empty() && !answers.tokens.contains(&token) {
                Err(Status::unauthenticated("no such token"))
            } else {
                match answers.faults.get_mut(call) {
                    Some((code, times @ 1..)) => {
                        *times -= 1;
                        Err(Status::new(Code::from_i32(*code), "as it was told"))
                    }
                    _ => Ok(()),
                }
            };
            (result, is_silent)
        };
        self.0.1.notify_all();
        if is_silent {
            std::future::pending::<()>().await;
        }
        result
    }
}

/// The message of the policy document `yaml`.
///
/// # Panics
/// It is invalid.
#[must_use]
pub fn policy(yaml: &str) -> SandboxPolicy {
    let (policy, _) = yaml::policy(yaml).unwrap();
    SandboxPolicy::decode(openshell_gateway::convert::policy::encoded(&policy).as_slice()).unwrap()
}

type Answer<T> = Result<Response<T>, Status>;
type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl OpenShell for Gateway {
    async fn get_sandbox_config(
        &self,
        request: Request<GetSandboxConfigRequest>,
    ) -> Answer<GetSandboxConfigResponse> {
        self.called("GetSandboxConfig", &request).await?;
        Ok(Response::new(self.answer(|answers| answers.config.clone())))
    }

    async fn get_sandbox_provider_environment(
        &self,
        request: Request<GetSandboxProviderEnvironmentRequest>,
    ) -> Answer<GetSandboxProviderEnvironmentResponse> {
        self.called("GetSandboxProviderEnvironment", &request)
            .await?;
        Ok(Response::new(
            self.answer(|answers| answers.environment.clone()),
        ))
    }

    async fn report_policy_status(
        &self,
        request: Request<ReportPolicyStatusRequest>,
    ) -> Answer<ReportPolicyStatusResponse> {
        self.called("ReportPolicyStatus", &request).await?;
        self.hear(|state| state.heard.statuses.push(request.into_inner()));
        Ok(Response::new(ReportPolicyStatusResponse {}))
    }

    async fn push_sandbox_logs(
        &self,
        request: Request<Streaming<PushSandboxLogsRequest>>,
    ) -> Answer<PushSandboxLogsResponse> {
        self.called("PushSandboxLogs", &request).await?;
        let mut batches = request.into_inner();
        while let Some(batch) = batches.next().await {
            let batch = batch?;
            self.hear(|state| state.heard.logs.extend(batch.logs));
        }
        Ok(Response::new(PushSandboxLogsResponse {}))
    }

    async fn submit_policy_analysis(
        &self,
        request: Request<SubmitPolicyAnalysisRequest>,
    ) -> Answer<SubmitPolicyAnalysisResponse> {
        self.called("SubmitPolicyAnalysis", &request).await?;
        let analysis = request.into_inner();
        let lines = analysis.proposed_chunks.clone();
        let count = u32::try_from(lines.len()).unwrap();
        self.hear(|state| state.heard.analyses.push(analysis));
        let mut response = SubmitPolicyAnalysisResponse::default();
        self.hear(|state| {
            let answers = &mut state.answers;
            if let Some(reason) = &answers.refuses_lines {
                response.rejected_chunks = count;
                response.rejection_reasons = vec![reason.clone(); lines.len()];
                return;
            }
            response.accepted_chunks = count;
            for mut line in lines {
                line.id = format!("chunk-{}", answers.drafts.len() + 1);
                if answers.generation == Generation::Today {
                    response.accepted_chunk_ids.push(line.id.clone());
                }
                answers.drafts.push(line);
            }
        });
        Ok(Response::new(response))
    }

    async fn update_config(
        &self,
        request: Request<UpdateConfigRequest>,
    ) -> Answer<UpdateConfigResponse> {
        self.called("UpdateConfig", &request).await?;
        let update = request.into_inner();
        if let Some(policy) = update.policy.clone() {
            self.set_policy(policy);
        }
        self.hear(|state| state.heard.updates.push(update));
        Ok(Response::new(UpdateConfigResponse::default()))
    }

    async fn get_draft_policy(
        &self,
        request: Request<GetDraftPolicyRequest>,
    ) -> Answer<GetDraftPolicyResponse> {
        self.called("GetDraftPolicy", &request).await?;
        let chunks = self.answer(|answers| answers.drafts.clone());
        Ok(Response::new(GetDraftPolicyResponse {
            chunks,
            ..GetDraftPolicyResponse::default()
        }))
    }

    type ConnectSupervisorStream = Messages<GatewayMessage>;

    async fn connect_supervisor(
        &self,
        request: Request<Streaming<SupervisorMessage>>,
    ) -> Answer<Self::ConnectSupervisorStream> {
        self.called("ConnectSupervisor", &request).await?;
        let (sender, receiver) = mpsc::channel(1024);
        let accepted = SessionAccepted {
            session_id: "session".to_owned(),
            heartbeat_interval_secs: 1,
        };
        let accepted = gateway_message::Payload::SessionAccepted(accepted);
        sender
            .try_send(Ok(GatewayMessage {
                payload: Some(accepted),
            }))
            .unwrap();
        // The session ends with this one.
        let answers = sender.downgrade();
        self.hear(|state| state.session = Some(sender));
        let gateway = self.clone();
        let mut messages = request.into_inner();
        tokio::spawn(async move {
            while let Some(Ok(message)) = messages.next().await {
                gateway.hear(|state| match message.payload {
                    Some(supervisor_message::Payload::Hello(hello)) => {
                        state.heard.hellos.push(hello)
                    }
                    Some(supervisor_message::Payload::Heartbeat(_)) => {
                        state.heard.heartbeats += 1;
                        let beat = gateway_message::Payload::Heartbeat(GatewayHeartbeat {});
                        let beat = Ok(GatewayMessage {
                            payload: Some(beat),
                        });
                        for sender in answers.upgrade().into_iter() {
                            drop(sender.try_send(beat.clone()));
                        }
                    }
                    Some(supervisor_message::Payload::RelayOpenResult(result)) => {
                        state.heard.relay_results.push(result)
                    }
                    Some(supervisor_message::Payload::RelayClose(_)) | None => {}
                });
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    type RelayStreamStream = Messages<RelayFrame>;

    async fn relay_stream(
        &self,
        request: Request<Streaming<RelayFrame>>,
    ) -> Answer<Self::RelayStreamStream> {
        self.called("RelayStream", &request).await?;
        let mut from = request.into_inner();
        let first = from
            .next()
            .await
            .ok_or_else(|| Status::invalid_argument("no frame"))??;
        let Some(relay_frame::Payload::Init(RelayInit { channel_id })) = first.payload else {
            return Err(Status::invalid_argument("the first frame names no channel"));
        };
        let waiting = self
            .state()
            .relays
            .remove(&channel_id)
            .ok_or_else(|| Status::not_found("no such channel"))?;
        let (to, receiver) = mpsc::channel(16);
        let _ = waiting.send(Relay { to, from });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn report_main_process_exit(
        &self,
        request: Request<ReportMainProcessExitRequest>,
    ) -> Answer<ReportMainProcessExitResponse> {
        self.called("ReportMainProcessExit", &request).await?;
        self.hear(|state| state.heard.exits.push(request.into_inner()));
        Ok(Response::new(ReportMainProcessExitResponse {}))
    }

    async fn issue_sandbox_token(
        &self,
        request: Request<IssueSandboxTokenRequest>,
    ) -> Answer<IssueSandboxTokenResponse> {
        self.called("IssueSandboxToken", &request).await?;
        Ok(Response::new(self.answer(|answers| answers.issued.clone())))
    }

    async fn refresh_sandbox_token(
        &self,
        request: Request<RefreshSandboxTokenRequest>,
    ) -> Answer<RefreshSandboxTokenResponse> {
        self.called("RefreshSandboxToken", &request).await?;
        let IssueSandboxTokenResponse {
            token,
            expires_at_ms,
        } = self.answer(|answers| answers.issued.clone());
        Ok(Response::new(RefreshSandboxTokenResponse {
            token,
            expires_at_ms,
            ..Default::default()
        }))
    }
}

#[tonic::async_trait]
impl Inference for Gateway {
    async fn get_inference_bundle(
        &self,
        request: Request<GetInferenceBundleRequest>,
    ) -> Answer<GetInferenceBundleResponse> {
        self.called("GetInferenceBundle", &request).await?;
        Ok(Response::new(self.answer(|answers| answers.bundle.clone())))
    }
}

/// A certificate authority for mutual TLS.
pub struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    /// Its certificate, in PEM.
    pub pem: String,
}

impl Authority {
    /// Creates an authority.
    ///
    /// # Panics
    /// There are no random numbers.
    #[must_use]
    pub fn create() -> Self {
        let mut parameters = rcgen::CertificateParams::default();
        parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = parameters.self_signed(&key).unwrap().pem();
        Self {
            issuer: rcgen::Issuer::new(parameters, key),
            pem,
        }
    }

    /// Issues a certificate for `name`, which ended yesterday if it `has_expired`: its chain and
    /// its key, in PEM.
    ///
    /// # Panics
    /// `name` is no name.
    #[must_use]
    pub fn issue(&self, name: &str, has_expired: bool) -> (String, String) {
        let mut parameters = rcgen::CertificateParams::new(vec![name.to_owned()]).unwrap();
        if has_expired {
            parameters.not_after = rcgen::date_time_ymd(2020, 1, 1);
        }
        let key = rcgen::KeyPair::generate().unwrap();
        (
            parameters.signed_by(&key, &self.issuer).unwrap().pem(),
            key.serialize_pem(),
        )
    }

    /// The TLS of a gateway called `name`, whose clients this authority must have certified.
    #[must_use]
    pub fn server(&self, name: &str) -> ServerTlsConfig {
        let (chain, key) = self.issue(name, false);
        let identity = Identity::from_pem(chain, key);
        ServerTlsConfig::new()
            .identity(identity)
            .client_ca_root(Certificate::from_pem(&self.pem))
    }
}
