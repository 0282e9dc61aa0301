//! Reports that a run writes at its end: proposals for refusals, and the policy of an observed run.

pub(crate) mod learning;
mod observed;
pub(crate) mod observed_files;
mod output_file;
pub(crate) mod saved;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use openshell_events::text::counted;
use openshell_events::words::{ConfigState, Severity};
use openshell_policy::filesystem::GrantedPath;
use openshell_policy::policy::Policy;
use openshell_policy::proposal;
use openshell_proxy::reach::resolve::lookup::Resolver;
use openshell_proxy::report::observe::Observations;
use openshell_sources::policy::schema::with_schema;
use openshell_supervisor::identity::run_as::User;
use openshell_telemetry::logging;

use crate::config::Config;
use crate::reports::look_up::look_up;
use crate::reports::refusals::Refusals;
use observed::{Earlier, Home, earlier, observed_policy, united};
use observed_files::ObservedFiles;
use output_file::OutputFile;
use saved::SavedPolicy;

/// Reports about a run, written when the command has ended.
pub(crate) struct RunReports {
    resolver: Arc<Resolver>,
    proposals: Option<OutputFile>,
    saved: Option<Arc<SavedPolicy>>,
    observed: Option<Observed>,
    started: Policy,
}

/// A file for the policy of an observed run.
struct Observed {
    output: OutputFile,
    observations: Arc<Observations>,
    /// Files that the run reads, if they are observed.
    files: Option<Arc<ObservedFiles>>,
    /// The home of the workload's user.
    home: Option<Home>,
    /// Paths that stay hidden.
    private: Vec<GrantedPath>,
    /// What earlier runs observed and this one keeps.
    before: Earlier,
}

impl RunReports {
    /// Opens the files that `config` names.
    ///
    /// # Errors
    /// Fails if a file cannot be written, is an input of the run, or was not written by an earlier
    /// run.
    pub(crate) fn prepare(config: &Config, started: &Policy, user: &User) -> anyhow::Result<Self> {
        let resolver = Arc::new(Resolver::from_system()?);
        let open = |flag: &str, path: &Option<PathBuf>| {
            let output = path
                .as_ref()
                .map(|path| OutputFile::open(flag, path))
                .transpose()?;
            output
                .iter()
                .try_for_each(|output| output.check_inputs(flag, config))?;
            anyhow::Ok(output)
        };
        let observed = match open("--observe", &config.reports.observe)? {
            Some(mut output) => {
                let before = earlier(&mut output, started, config.reports.observe_merge)?;
                let files = config.reports.observe_files.then(Arc::default);
                let home = user.home.as_deref().and_then(Home::at);
                let private = learning::private_paths(
                    &learning::homes(user, &config.command.environment),
                    started.filesystem(),
                );
                Some(Observed {
                    output,
                    observations: Arc::default(),
                    files,
                    home,
                    private,
                    before,
                })
            }
            None => None,
        };
        if observed.is_some() {
            let files = if config.reports.observe_files {
                ", and the files of the user are shown"
            } else {
                ""
            };
            let message = format!(
                "OBSERVING: connections that the policy refuses are permitted, to internal \
                 addresses too{files}"
            );
            logging::config_event(ConfigState::Degraded, Severity::High, &message);
        }
        let proposals = match open("--proposals", &config.reports.proposals)? {
            Some(mut output) => {
                let empty = proposal::fragment(&[]);
                let first = empty
                    .split_once('\n')
                    .map_or(empty.as_str(), |(first, _)| first);
                output.written_by("--proposals", first)?;
                Some(output)
            }
            None => None,
        };
        let saved = match open("--save", &config.reports.save)? {
            Some(output) => Some(Arc::new(SavedPolicy::new(output, config)?)),
            None => None,
        };
        Ok(Self {
            resolver,
            proposals,
            saved,
            observed,
            started: started.clone(),
        })
    }

    /// Returns the resolver of the run, which also looks up the hosts that were refused.
    pub(crate) fn resolver(&self) -> Arc<Resolver> {
        Arc::clone(&self.resolver)
    }

    /// Returns the paths of the files, each with its kind.
    pub(crate) fn paths(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let proposals = self
            .proposals
            .iter()
            .map(|output| ("file of --proposals", output.path()));
        let saved = self.saved.iter();
        let saved = saved.map(|saved| ("file of --save", saved.path()));
        proposals.chain(saved).chain(
            self.observed
                .iter()
                .map(|observed| ("file of --observe", observed.output.path())),
        )
    }

    /// Returns the file of --save.
    pub(crate) fn saved(&self) -> Option<Arc<SavedPolicy>> {
        self.saved.clone()
    }

    /// Returns the collection of observations, if the run is observed.
    pub(crate) fn observations(&self) -> Option<Arc<Observations>> {
        self.observed
            .as_ref()
            .map(|observed| Arc::clone(&observed.observations))
    }

    /// Returns the collection of files, if they are observed.
    pub(crate) fn observed_files(&self) -> Option<Arc<ObservedFiles>> {
        self.observed
            .as_ref()
            .and_then(|observed| observed.files.clone())
    }

    /// Writes proposals for the refusals, the policy that the run came to with the lines `for_run`, and
    /// the policy of the observed run, whichever are asked for.
    ///
    /// # Errors
    /// Fails if the disk fails or is full, or a file was replaced during the run.
    pub(crate) async fn write(
        &mut self,
        refusals: &Refusals,
        for_run: &[String],
    ) -> anyhow::Result<()> {
        let saved = match &self.saved {
            Some(saved) => saved.finish(for_run),
            None => Ok(()),
        };
        if let Some(output) = &mut self.proposals {
            let addresses = look_up(&self.resolver, refusals.hosts()).await;
            output.write(&with_schema(&refusals.proposals(&addresses)))?;
        }
        if let Some(Observed {
            output,
            observations,
            files,
            home,
            private,
            before,
        }) = &mut self.observed
        {
            let (all, is_complete) = observations.all();
            let Earlier { endpoints, paths } = std::mem::take(before);
            let mut learned = files
                .as_ref()
                .map(|files| files.learned(home.as_ref().map(|home| home.path.as_path())))
                .unwrap_or_default();
            learned.is_incomplete |= !is_complete;
            let paths = paths.with(&learned, private, home.as_ref());
            let policy = observed_policy(&self.started, united(endpoints, all), &paths, &learned);
            output.write(&with_schema(&policy))?;
            if !learned.not_written.is_empty() {
                let message = format!(
                    "a run under {} will differ from this one: it does not grant writing to {} in \
                     the home, because programs outside may run what is there; the file has a \
                     comment for each",
                    output.path().display(),
                    counted(learned.not_written.len() as u64, "path", "paths")
                );
                logging::config_event(ConfigState::Validated, Severity::Medium, &message);
            }
        }
        saved
    }
}
