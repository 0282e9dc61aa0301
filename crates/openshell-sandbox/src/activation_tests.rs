use std::fs::Permissions;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use openshell_proxy::credentials::watched::CurrentVault;
use openshell_proxy::decide::store::PolicyStore;
use openshell_proxy::inference::route::{Inference, RouteTable};
use openshell_proxy::policy_local::serve::PolicyLocal;
use openshell_supervisor::command::environment::Environment;
use openshell_supervisor::files::protected::Protection;
use tokio::sync::{mpsc, oneshot};

use openshell_sources::files::Files;
use openshell_sources::input::Phase;
use openshell_sources::policy::Compile as _;
use openshell_sources::policy::policy_file::{PolicyDocument, PolicyFiles};
use openshell_sources::secrets::credential_file::{CredentialSet, OpenedCredentials};
use openshell_sources::secrets::route_file;
use openshell_sources::update::{Answer, Request, Source, Update, forward};

use crate::activation::{Compiled, InForce, Policy};

const VALID: &str = "network_policies: {}\n";
const INVALID: &str = "network_policies: 7\n";
const CREDENTIALS: &str = "credentials: {KEY: {value: s3cret-Value.42, hosts: [a.test]}}\n";
const ROUTES: &str =
    "routes: [{name: r, endpoint: 'mock://x', model: m, protocols: [model_discovery]}]\n";

/// A folder of input files.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        let folder =
            std::env::temp_dir().join(format!("openshell-sources-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn policy(&self, text: &str) -> PolicyFiles {
        PolicyFiles {
            data: self.file("policy.yaml", text),
            ..PolicyFiles::default()
        }
    }

    fn document(&self, text: &str) -> PolicyDocument {
        self.policy(text).read(Phase::Start).unwrap()
    }

    fn credentials(&self) -> CredentialSet {
        let mut environment = Environment::new([]);
        let opened = OpenedCredentials::open(
            Some(self.file("credentials.yaml", CREDENTIALS)),
            &mut environment,
        )
        .unwrap();
        opened.resolve().unwrap().1
    }

    fn update(&self, policy: &str) -> Update {
        Update {
            policy: Some(self.document(policy)),
            ..Update::default()
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The owner of a sandbox's policy, credentials and routes, as a task.
struct Owner {
    policy: Arc<PolicyStore>,
    vault: Arc<CurrentVault>,
    requests: mpsc::Sender<Request>,
}

impl Owner {
    fn start(folder: &Folder, inference: Option<Arc<Inference>>) -> Self {
        let policy = Arc::new(PolicyStore::new(
            folder
                .document(VALID)
                .compile::<Compiled>(1)
                .unwrap()
                .compiled
                .0,
        ));
        let vault = Arc::new(CurrentVault::default());
        let policy_local =
            PolicyLocal::new(Arc::clone(&policy), Arc::default(), None, Arc::default());
        let in_force = InForce {
            policy_local: policy_local.into(),
            approvals: None,
            policy,
            vault,
            inference,
            leaks: Arc::default(),
            reloads: Arc::default(),
        };
        let (requests, updates) = mpsc::channel(1);
        tokio::spawn(in_force.clone().run(updates));
        Self {
            policy: in_force.policy,
            vault: in_force.vault,
            requests,
        }
    }

    async fn answer(&self, update: Update) -> Answer {
        let (answer, answered) = oneshot::channel();
        self.requests
            .send(Request { update, answer })
            .await
            .ok()
            .unwrap();
        answered.await.unwrap()
    }
}

#[tokio::test]
async fn each_update_is_answered_and_generations_count_those_applied() {
    let folder = Folder::new("answers");
    let owner = Owner::start(&folder, None);
    assert!(matches!(
        owner.answer(folder.update(VALID)).await,
        Answer::Applied { generation: 2 }
    ));
    let Answer::Rejected(error) = owner.answer(folder.update(INVALID)).await else {
        panic!("it is invalid")
    };
    assert!(error.to_string().contains("network_policies"), "{error}");
    assert_eq!(owner.policy.load().generation(), 2);
    assert!(matches!(
        owner.answer(folder.update(VALID)).await,
        Answer::Applied { generation: 3 }
    ));
}

#[tokio::test]
async fn credentials_come_into_force_with_the_policy_or_not_at_all() {
    let folder = Folder::new("both");
    let owner = Owner::start(&folder, None);
    let with_credentials = |policy| Update {
        credentials: Some(folder.credentials()),
        ..folder.update(policy)
    };
    assert!(matches!(
        owner.answer(with_credentials(INVALID)).await,
        Answer::Rejected(_)
    ));
    assert!(owner.vault.load().is_empty());
    assert!(matches!(
        owner.answer(with_credentials(VALID)).await,
        Answer::Applied { .. }
    ));
    assert!(owner.vault.load().get("KEY").is_some());
}

#[tokio::test]
async fn routes_are_replaced_where_the_sandbox_has_some() {
    let folder = Folder::new("routes");
    let routes =
        || route_file::read(&folder.file("routes.yaml", ROUTES), &Environment::new([])).unwrap();
    let inference = Arc::new(Inference::new(RouteTable::new([], 1)));
    let owner = Owner::start(&folder, Some(Arc::clone(&inference)));
    owner
        .answer(Update {
            routes: Some(routes()),
            ..folder.update(VALID)
        })
        .await;
    assert!(!inference.table().is_empty());
    let without = Owner::start(&folder, None);
    let answer = without
        .answer(Update {
            routes: Some(routes()),
            ..folder.update(VALID)
        })
        .await;
    assert!(
        matches!(answer, Answer::Applied { .. }),
        "the rest is applied"
    );
}

#[tokio::test]
async fn requests_for_a_reload_that_come_together_are_one_update() {
    let folder = Folder::new("coalesced");
    let (mut files, initial) = Files::open(Policy::load(folder.policy(VALID)), None, None).unwrap();
    files.protect(Protection::default());
    assert_eq!(initial.policy.compiled.generation(), 1);
    let wanted = files.reload();
    for _ in 0..3 {
        wanted.notify_one();
    }
    files.next().await;
    let mut next = pin!(files.next());
    assert!(matches!(
        next.as_mut().poll(&mut Context::from_waker(Waker::noop())),
        Poll::Pending
    ));
}

#[tokio::test]
async fn a_source_hears_of_each_update_before_it_makes_the_next() {
    /// Ends after two answers.
    struct Twice(Vec<PolicyDocument>, mpsc::Sender<u64>);

    impl Source for Twice {
        async fn next(&mut self) -> Update {
            match self.0.pop() {
                Some(policy) => Update {
                    policy: Some(policy),
                    ..Update::default()
                },
                None => std::future::pending().await,
            }
        }

        fn answered(&mut self, answer: Answer) {
            let Answer::Applied { generation } = answer else {
                panic!("{answer:?}")
            };
            self.1.try_send(generation).unwrap();
        }
    }

    let folder = Folder::new("forward");
    let owner = Owner::start(&folder, None);
    let (answers, mut heard) = mpsc::channel(2);
    let source = Twice(
        vec![folder.document(VALID), folder.document(VALID)],
        answers,
    );
    tokio::spawn(forward(source, owner.requests.clone()));
    assert_eq!((heard.recv().await, heard.recv().await), (Some(2), Some(3)));
}

#[test]
fn a_symlink_where_the_start_grants_writing_never_counts_whatever_a_reload_takes_away() {
    // /tmp is granted in any case.
    let place = Folder(PathBuf::from(format!(
        "/var/tmp/openshell-sources-link-{}",
        std::process::id()
    )));
    let folder = &place.0;
    let link = place.0.join("tool");
    std::fs::create_dir(folder).unwrap();
    std::fs::set_permissions(folder, Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::symlink("/usr/bin/env", &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(61184), None).unwrap();
    let policy = |grant: &str| {
        format!(
            "filesystem_policy: {{{grant}: [{}]}}\nnetwork_policies: {{a: {{endpoints: [{{host: \
             a.test, port: 1}}], binaries: [{{path: {}}}]}}}}\n",
            folder.display(),
            link.display()
        )
    };
    let inputs = Folder::new("symlink");
    let links = |files: &PolicyFiles, generation| {
        let version = files
            .read(Phase::Start)
            .unwrap()
            .compile::<Compiled>(generation)
            .unwrap();
        version.compiled.links().len()
    };
    assert_eq!(
        links(&inputs.policy(&policy("read_only")), 1),
        1,
        "the workload cannot have made it"
    );
    let files = inputs.policy(&policy("read_write"));
    assert_eq!(links(&files, 1), 0);
    drop(inputs.policy(&policy("read_only")));
    assert_eq!(links(&files, 2), 0, "the workload can write there still");
}
