//! The calls of a supervisor to its gateway.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use openshell_events::denial::{DenialSummary, Denials};
use openshell_policy::policy::Policy;
use openshell_policy::proposal::Proposal;
use openshell_policy::secret::Secret;
use tokio::sync::{mpsc, watch};
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::channel::{self, Address, AddressError};
use crate::convert::config::{self, SandboxConfig};
use crate::convert::denials::{self, Activity};
use crate::convert::drafts::{self, Draft, ProposedLine, Submitted};
use crate::convert::environment::{self, ProviderEnvironment};
use crate::convert::policy;
use crate::convert::routes::{self, Bundle};
use crate::error::CallError;
use crate::proto::inference::v1::GetInferenceBundleRequest;
use crate::proto::inference::v1::inference_client::InferenceClient;
use crate::proto::sandbox::v1::GetSandboxConfigRequest;
use crate::proto::v1::open_shell_client::OpenShellClient;
use crate::proto::v1::{
    GatewayMessage, GetDraftPolicyRequest, GetSandboxProviderEnvironmentRequest,
    IssueSandboxTokenRequest, PolicyStatus, PushSandboxLogsRequest, RefreshSandboxTokenRequest,
    RelayFrame, ReportMainProcessExitRequest, ReportPolicyStatusRequest,
    SubmitPolicyAnalysisRequest, SubmitPolicyAnalysisResponse, SupervisorMessage,
    UpdateConfigRequest,
};
use crate::streams::{begun, stream_of};
use crate::token::{Token, TokenSource, Tokens};

/// Time within which a call must be answered.
const DEADLINE: Duration = Duration::from_secs(30);

/// Wait after a failed renewal of the token.
const RENEWAL_RETRY: Duration = Duration::from_secs(10);

/// Largest frame of a relay, in bytes.
const FRAME_BYTES: usize = 256 * 1024;

/// Largest message of a gateway, in bytes.
const MESSAGE_BYTES: usize = 64 * 1024 * 1024;

/// The gateway as one sandbox sees it. Clones share one connection and one token.
#[derive(Clone, Debug)]
pub struct Gateway(Arc<Shared>);

struct Shared {
    channel: Channel,
    /// The sandbox's id, and its name.
    id: String,
    name: String,
    source: Option<Box<dyn TokenSource>>,
    token: Token,
    /// True once the gateway has done something that gateways of the first generation do not do.
    is_later: AtomicBool,
    /// Held while the token is replaced, so that a hundred calls together replace it only once.
    renewal: tokio::sync::Mutex<()>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("id", &self.id)
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

/// Names of a sandbox at its gateway.
#[derive(Clone, Debug)]
pub struct Names {
    /// Its id.
    pub id: String,
    /// Its name, which some calls take instead of the id.
    pub name: String,
}

impl Gateway {
    /// Prepares calls to the gateway at `address` for the sandbox `names`. `source` provides the
    /// sandbox's token, if there is one. The first call connects. Must be called inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// Fails if the address cannot be used.
    pub fn new(
        address: Address,
        names: Names,
        source: Option<Box<dyn TokenSource>>,
    ) -> Result<Self, AddressError> {
        let channel = channel::open(address)?;
        let Names { id, name } = names;
        let token = Token::default();
        let is_later = AtomicBool::new(false);
        Ok(Self(Arc::new(Shared {
            channel,
            id,
            name,
            source,
            token,
            is_later,
            renewal: tokio::sync::Mutex::default(),
        })))
    }

    /// Reads the token, and exchanges it if a platform issued it.
    ///
    /// # Errors
    /// Fails if the token cannot be read or is empty, or if the gateway does not exchange it.
    pub async fn authenticate(&self) -> Result<(), TokenError> {
        let Some(source) = &self.0.source else {
            return Ok(());
        };
        let read = source.read()?;
        if !source.is_exchanged() {
            return Ok(self.0.token.replace_by_source(read)?);
        }
        // Meanwhile, other calls go on with the token that they have.
        let platform = Token::default();
        self.0
            .token
            .remember_exchanged(Secret::new(read.expose().to_vec()));
        platform.replace(read, None)?;
        let exchange = |mut client: OpenShellClient<Channel>,
                        mut request: Request<IssueSandboxTokenRequest>| {
            set_token(&mut request, &platform);
            async move { client.issue_sandbox_token(request).await }
        };
        let issued = self
            .once("IssueSandboxToken", IssueSandboxTokenRequest {}, exchange)
            .await?;
        self.note_later();
        Ok(self.0.token.replace(
            Secret::new(issued.token.into_bytes()),
            known(issued.expires_at_ms),
        )?)
    }

    /// Reads the token again, unless that has already happened since a call that carried the token
    /// `number`.
    pub(crate) async fn authenticate_again(&self, number: u64) -> Result<(), TokenError> {
        let _renewal = self.0.renewal.lock().await;
        if self.token_number() == number {
            self.authenticate().await
        } else {
            Ok(())
        }
    }

    /// Returns a receiver for the tokens that the sandbox has had so far, which learns of each new
    /// one.
    #[must_use]
    pub fn tokens(&self) -> watch::Receiver<Tokens> {
        self.0.token.follow()
    }

    /// Returns the number of the token that calls carry.
    pub(crate) fn token_number(&self) -> u64 {
        self.0.token.number()
    }

    /// Keeps the token renewed for as long as the future is polled.
    pub async fn renew_token(&self) {
        if self.0.source.is_none() {
            return std::future::pending().await;
        }
        let mut wait = self.0.token.renewal();
        loop {
            tokio::time::sleep(wait).await;
            wait = match self.renew().await {
                Ok(()) => self.0.token.renewal(),
                Err(error) => {
                    tracing::warn!(
                        "cannot renew the gateway's token; next attempt in {} s: {error}",
                        RENEWAL_RETRY.as_secs()
                    );
                    RENEWAL_RETRY
                }
            };
        }
    }

    async fn renew(&self) -> Result<(), TokenError> {
        let _renewal = self.0.renewal.lock().await;
        let request = RefreshSandboxTokenRequest {
            extension_service_names: Vec::new(),
        };
        let renewed = self.once(
            "RefreshSandboxToken",
            request,
            |mut client, request| async move { client.refresh_sandbox_token(request).await },
        );
        match renewed.await {
            Ok(renewed) => {
                self.note_later();
                Ok(self.0.token.replace(
                    Secret::new(renewed.token.into_bytes()),
                    known(renewed.expires_at_ms),
                )?)
            }
            // The source of the token may have a newer one.
            Err(error) if error.is_unauthenticated() || error.is_unimplemented() => {
                self.authenticate().await
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Fetches everything that is in force for the sandbox.
    ///
    /// # Errors
    /// Fails if the call fails, or the policy is not an encoded message.
    pub async fn config(&self) -> Result<SandboxConfig, CallError> {
        let request = GetSandboxConfigRequest {
            sandbox_id: self.0.id.clone(),
        };
        let response = self.call(
            "GetSandboxConfig",
            request,
            |mut client, request| async move { client.get_sandbox_config(request).await },
        );
        let config = config::read(response.await?).map_err(|error| {
            let status = Status::internal(error.to_string());
            CallError::new("GetSandboxConfig", &status)
        })?;
        if config.is_later {
            self.note_later();
        }
        Ok(config)
    }

    /// Returns true if the gateway is known to be of a later generation than the first.
    #[must_use]
    pub fn is_later(&self) -> bool {
        self.0.is_later.load(Ordering::Relaxed)
    }

    /// Notes that the gateway is of a later generation than the first.
    pub(crate) fn note_later(&self) {
        self.0.is_later.store(true, Ordering::Relaxed);
    }

    /// Fetches the sandbox's credentials.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn provider_environment(&self) -> Result<ProviderEnvironment, CallError> {
        let request = GetSandboxProviderEnvironmentRequest {
            sandbox_id: self.0.id.clone(),
            supports_static_credential_bindings: true,
        };
        let response =
            self.call(
                "GetSandboxProviderEnvironment",
                request,
                |mut client, request| async move {
                    client.get_sandbox_provider_environment(request).await
                },
            );
        Ok(environment::read(response.await?))
    }

    /// Fetches the routes to models.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn routes(&self) -> Result<Bundle, CallError> {
        let response = self.call(
            "GetInferenceBundle",
            GetInferenceBundleRequest {},
            |_, request| {
                let mut client = InferenceClient::new(self.0.channel.clone())
                    .max_decoding_message_size(MESSAGE_BYTES);
                async move { client.get_inference_bundle(request).await }
            },
        );
        Ok(routes::read(response.await?))
    }

    /// Reports whether `version` of the policy could be put in force.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn report_status(
        &self,
        version: u32,
        status: &PolicyResult,
    ) -> Result<(), CallError> {
        let (status, load_error) = match status {
            PolicyResult::Loaded => (PolicyStatus::Loaded, String::new()),
            PolicyResult::Failed(error) => (PolicyStatus::Failed, error.clone()),
        };
        let sandbox_id = self.0.id.clone();
        let request = ReportPolicyStatusRequest {
            sandbox_id,
            version,
            status: status.into(),
            load_error,
        };
        let reported = self.call(
            "ReportPolicyStatus",
            request,
            |mut client, request| async move { client.report_policy_status(request).await },
        );
        reported.await.map(drop)
    }

    /// Sends the sandbox's own policy, for a gateway that has none or that lacks a part of it.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn send_policy(&self, policy: &Policy, workspace: &str) -> Result<(), CallError> {
        let request = UpdateConfigRequest {
            name: self.0.name.clone(),
            policy: Some(policy::message(policy)),
            workspace: workspace.to_owned(),
            ..UpdateConfigRequest::default()
        };
        let sent = self.call("UpdateConfig", request, |mut client, request| async move {
            client.update_config(request).await
        });
        sent.await.map(drop)
    }

    /// Reports denials together with the rules that would permit them.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn submit_denials(
        &self,
        denials: &Denials,
        proposals: &[Proposal],
        workspace: &str,
    ) -> Result<(), CallError> {
        let summaries = denials.summaries();
        let of = |proposal: &Proposal| {
            let is_of = |summary: &&&DenialSummary| {
                let first = &summary.first;
                first.host == proposal.host
                    && first.port == proposal.port
                    && first.binary == proposal.binary
            };
            denials::chunk(proposal, summaries.iter().find(is_of).copied())
        };
        self.submit(SubmitPolicyAnalysisRequest {
            summaries: denials::summaries(denials),
            proposed_chunks: proposals.iter().filter_map(of).collect(),
            analysis_mode: "mechanistic".to_owned(),
            workspace: workspace.to_owned(),
            ..SubmitPolicyAnalysisRequest::default()
        })
        .await
        .map(drop)
    }

    /// Reports counts of decisions.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn submit_activity(
        &self,
        activity: &Activity,
        workspace: &str,
    ) -> Result<(), CallError> {
        self.submit(SubmitPolicyAnalysisRequest {
            network_activity_summaries: vec![denials::activity(activity)],
            analysis_mode: "activity".to_owned(),
            workspace: workspace.to_owned(),
            ..SubmitPolicyAnalysisRequest::default()
        })
        .await
        .map(drop)
    }

    /// Proposes one line: in place of a person who is asked, or as an agent has written it if
    /// `is_by_agent`.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn propose(
        &self,
        line: ProposedLine<'_>,
        is_by_agent: bool,
        workspace: &str,
    ) -> Result<Submitted, CallError> {
        let mode = if is_by_agent {
            "agent_authored"
        } else {
            "mechanistic"
        };
        let submitted = self.submit(SubmitPolicyAnalysisRequest {
            proposed_chunks: vec![drafts::chunk(line)],
            analysis_mode: mode.to_owned(),
            workspace: workspace.to_owned(),
            ..SubmitPolicyAnalysisRequest::default()
        });
        Ok(drafts::submitted(submitted.await?))
    }

    /// Returns the lines that were proposed for the sandbox, and what became of them.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn drafts(&self, workspace: &str) -> Result<Vec<Draft>, CallError> {
        let request = GetDraftPolicyRequest {
            name: self.0.name.clone(),
            status_filter: String::new(),
            workspace: workspace.to_owned(),
        };
        let response = self.call(
            "GetDraftPolicy",
            request,
            |mut client, request| async move { client.get_draft_policy(request).await },
        );
        let chunks = response.await?.chunks.into_iter();
        Ok(chunks.filter_map(drafts::draft).collect())
    }

    async fn submit(
        &self,
        request: SubmitPolicyAnalysisRequest,
    ) -> Result<SubmitPolicyAnalysisResponse, CallError> {
        let request = SubmitPolicyAnalysisRequest {
            name: self.0.name.clone(),
            ..request
        };
        let submitted = self.call(
            "SubmitPolicyAnalysis",
            request,
            |mut client, request| async move { client.submit_policy_analysis(request).await },
        );
        submitted.await
    }

    /// Reports that the main process of the supervisor `instance` has ended.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub async fn report_exit(&self, instance: &str, exit_code: i32) -> Result<(), CallError> {
        let sandbox_id = self.0.id.clone();
        let instance_id = instance.to_owned();
        let request = ReportMainProcessExitRequest {
            sandbox_id,
            instance_id,
            exit_code,
        };
        let reported = self.call(
            "ReportMainProcessExit",
            request,
            |mut client, request| async move { client.report_main_process_exit(request).await },
        );
        reported.await.map(drop)
    }

    /// Returns the sandbox's id.
    pub(crate) fn id(&self) -> &str {
        &self.0.id
    }

    /// Sends batches of log lines until there are no more, and waits until the gateway has taken
    /// them.
    pub(crate) async fn push_logs(
        &self,
        batches: mpsc::Receiver<PushSandboxLogsRequest>,
    ) -> Result<(), CallError> {
        let request = self.request(stream_of(batches));
        let pushed = self.client().push_sandbox_logs(request).await;
        pushed
            .map(drop)
            .map_err(|status| CallError::new("PushSandboxLogs", &status))
    }

    /// Returns true if the gateway offers sessions. Opens the stream of one for that, but says
    /// nothing in it, so no session begins.
    ///
    /// # Errors
    /// Fails if the call fails for any reason other than that the gateway does not have it.
    pub async fn offers_sessions(&self) -> Result<bool, CallError> {
        /// A gateway that offers sessions may wait for the first message before it answers.
        const PATIENCE: Duration = Duration::from_secs(2);
        let (_silent, messages) = mpsc::channel(1);
        match tokio::time::timeout(PATIENCE, self.connect_supervisor(messages)).await {
            Err(_) | Ok(Ok(_)) => Ok(true),
            Ok(Err(error)) if error.is_unimplemented() => Ok(false),
            Ok(Err(error)) => Err(error),
        }
    }

    /// Begins a session.
    pub(crate) async fn connect_supervisor(
        &self,
        messages: mpsc::Receiver<SupervisorMessage>,
    ) -> Result<Streaming<GatewayMessage>, CallError> {
        let request = self.request(stream_of(messages));
        begun(
            "ConnectSupervisor",
            self.client().connect_supervisor(request),
        )
        .await
    }

    /// Begins the stream of a relay.
    pub(crate) async fn relay_stream(
        &self,
        frames: mpsc::Receiver<RelayFrame>,
    ) -> Result<Streaming<RelayFrame>, CallError> {
        let request = self.request(stream_of(frames));
        let mut client = self.client().max_decoding_message_size(FRAME_BYTES);
        begun("RelayStream", client.relay_stream(request)).await
    }

    /// Makes a call. If the gateway does not know who is calling, reads the token from its source
    /// again and repeats the call once.
    async fn call<M: Clone, R, F: Future<Output = Result<Response<R>, Status>>>(
        &self,
        call: &'static str,
        message: M,
        send: impl Fn(OpenShellClient<Channel>, Request<M>) -> F,
    ) -> Result<R, CallError> {
        let number = self.token_number();
        match self.once(call, message.clone(), &send).await {
            Err(error) if error.is_unauthenticated() && self.0.source.is_some() => {
                let renewed = self.authenticate_again(number).await;
                renewed.map_err(|renewal| {
                    CallError::of(call, Code::Unauthenticated, renewal.to_string())
                })?;
                self.once(call, message, send).await
            }
            result => result,
        }
    }

    async fn once<M, R, F: Future<Output = Result<Response<R>, Status>>>(
        &self,
        call: &'static str,
        message: M,
        send: impl Fn(OpenShellClient<Channel>, Request<M>) -> F,
    ) -> Result<R, CallError> {
        let mut request = self.request(message);
        request.set_timeout(DEADLINE);
        let begun = tokio::time::Instant::now();
        let late = || CallError::of(call, Code::DeadlineExceeded, "no answer within 30 seconds");
        match tokio::time::timeout(DEADLINE, send(self.client(), request)).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            // The library cancels a call at its deadline.
            Ok(Err(status)) if status.code() == Code::Cancelled && begun.elapsed() >= DEADLINE => {
                Err(late())
            }
            Ok(Err(status)) => Err(CallError::new(call, &status)),
            Err(_) => Err(late()),
        }
    }

    fn client(&self) -> OpenShellClient<Channel> {
        OpenShellClient::new(self.0.channel.clone()).max_decoding_message_size(MESSAGE_BYTES)
    }

    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        set_token(&mut request, &self.0.token);
        request
    }
}

/// Adds `token` to `request`, if there is one.
fn set_token<M>(request: &mut Request<M>, token: &Token) {
    if let Some(token) = token.header() {
        request.metadata_mut().insert("authorization", token);
    }
}

/// The outcome of a version of the policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PolicyResult {
    /// It is in force.
    Loaded,
    /// It is invalid; holds every violation.
    Failed(String),
}

/// An error for a token that cannot be obtained.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant's message is its documentation")]
pub enum TokenError {
    #[error("cannot read the sandbox's token: {0}")]
    Source(#[from] io::Error),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl TokenError {
    /// Returns true if a later attempt may obtain it.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Source(_) => false,
            Self::Call(error) => error.is_transient(),
        }
    }
}

/// Returns an expiry in milliseconds since 1970; `None` for 0, which means that it is unknown.
fn known(expires_at_ms: i64) -> Option<u64> {
    u64::try_from(expires_at_ms)
        .ok()
        .filter(|expires| *expires != 0)
}
