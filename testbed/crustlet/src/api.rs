//! `crustlet.v1`, the service that the commands (`crustlet get`, `run`, …) call.
//!
//! Objects are shown by the agent, which has them. Manifests are written here, one call at a time, and the agent
//! reads them before the caller is answered.

mod logs;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use crust_proto::crustlet::v1::apply_response::{Applied, applied};
use crust_proto::crustlet::v1::event::Type;
use crust_proto::crustlet::v1::node_server::Node;
use crust_proto::crustlet::v1::{
    ApplyRequest, ApplyResponse, DeleteRequest, DeleteResponse, Event, EventsRequest, ExecRequest,
    ExecResponse, ListRequest, ListResponse, LogsRequest, LogsResponse,
};
use crust_serve::ErrorReply;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Request, Response, Status};

use crate::cri::Cri;
use crate::events::{self, Events};
use crate::objects::manifest::{DEFAULT_NAMESPACE, is_name};
use crate::objects::name::new_uid;
use crate::objects::{Kind, Name};
use crate::sources::{self, ApplyOutcome, CurrentState, ManifestDirectories, WriteError};

/// What the agent is asked.
#[derive(Debug)]
pub(crate) enum Question {
    /// For objects.
    List(Listed, oneshot::Sender<Vec<String>>),
    /// For a container of a pod: by its name, or the first.
    Container(Name, String, oneshot::Sender<Result<Container, String>>),
    /// Which volumes are deferred of the pods that were begun.
    Begun(oneshot::Sender<BTreeMap<Name, BTreeSet<String>>>),
    /// To delete a `PersistentVolume` that was made here; whether it was.
    DeleteVolume(Name, oneshot::Sender<Result<bool, String>>),
    /// To read manifests now; with the file that was taken away.
    Load(Option<PathBuf>, oneshot::Sender<()>),
}

/// Which objects.
#[derive(Debug)]
pub(crate) struct Listed {
    /// Of what; `None` are the node's volumes.
    pub(crate) kind: Option<Kind>,
    /// Empty is all of them.
    pub(crate) namespace: String,
    /// Empty is all of them.
    pub(crate) name: String,
}

/// A container of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    /// Of its last run.
    pub(crate) id: String,
    /// Whether it runs.
    pub(crate) is_running: bool,
    /// What it has written.
    pub(crate) log: PathBuf,
    /// The same of the run before.
    pub(crate) previous_log: Option<PathBuf>,
}

/// The service.
#[derive(Debug)]
pub(crate) struct Api {
    directories: Vec<PathBuf>,
    events: Events,
    cri: Cri,
    agent: mpsc::UnboundedSender<Question>,
    writing: Arc<Mutex<()>>,
}

/// What a call is refused with.
fn refused(code: Code, reason: &str, message: &str) -> Status {
    let failure = ErrorReply {
        code,
        reason,
        message,
        volume: None,
        field: None,
    };
    failure.into_status()
}

fn invalid(message: &str) -> Status {
    refused(Code::InvalidArgument, "INVALID", message)
}

fn ended<E>(_: E) -> Status {
    refused(Code::Unavailable, "ENDING", "crustlet ends")
}

impl From<WriteError> for Status {
    fn from(error: WriteError) -> Self {
        let (code, reason) = match &error {
            WriteError::Manifest(_) | WriteError::Document(_) | WriteError::Empty => {
                (Code::InvalidArgument, "INVALID")
            }
            WriteError::NotFound(..) => (Code::NotFound, "NOT_FOUND"),
            WriteError::PodChanged(_)
            | WriteError::PodStarted(_)
            | WriteError::BeingDeleted(..)
            | WriteError::FileChanged { .. }
            | WriteError::SharedFile { .. } => (Code::FailedPrecondition, "CONFLICT"),
            WriteError::Yaml(..)
            | WriteError::Uid(_)
            | WriteError::File(_)
            | WriteError::Untrusted(_)
            | WriteError::PartiallyWritten { .. } => (Code::Internal, "WRITE"),
        };
        refused(code, reason, &crust_state::sentence(&error))
    }
}

impl Api {
    /// Of an agent.
    pub(crate) fn new(
        directories: Vec<PathBuf>,
        events: Events,
        cri: Cri,
        agent: mpsc::UnboundedSender<Question>,
    ) -> Self {
        Self {
            directories,
            events,
            cri,
            agent,
            writing: Arc::default(),
        }
    }

    async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        self.agent.send(question(answer)).map_err(ended)?;
        answered.await.map_err(ended)
    }

    async fn container(&self, pod: &Name, container: &str) -> Result<Container, Status> {
        let asked = |answer| Question::Container(pod.clone(), container.to_owned(), answer);
        let found = self.ask(asked).await?;
        found.map_err(|message| refused(Code::NotFound, "NOT_FOUND", &message))
    }

    /// Writes manifests by what is there at this moment, and the agent reads them; what was written, and which file
    /// was taken away.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(
            &[PathBuf],
            &sources::LoadedManifests,
        ) -> Result<(T, Option<PathBuf>), WriteError>
        + Send
        + 'static,
    ) -> Result<T, Status> {
        // It goes on where the caller has hung up: half of what was asked for is nothing.
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let directories = self.directories.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let loaded = ManifestDirectories::new(&directories).read(&[], Instant::now());
            write(&directories, &loaded)
        });
        let (written, gone) = match written.await.map_err(ended)? {
            Ok((written, gone)) => (Ok(written), gone),
            // What failed may have been done in part.
            Err(error) => (Err(error), None),
        };
        self.ask(|answer| Question::Load(gone, answer)).await?;
        Ok(written?)
    }
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Node for Api {
    type EventsStream = Answers<Event>;
    type LogsStream = Answers<LogsResponse>;

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let ListRequest {
            kind,
            namespace,
            name,
        } = request.into_inner();
        let kind = match kind.as_str() {
            crate::volumes::view::KIND => None,
            kind => Some(of_kind(kind)?),
        };
        let listed = Listed {
            kind,
            namespace,
            name,
        };
        let documents = self.ask(|answer| Question::List(listed, answer)).await?;
        Ok(Response::new(ListResponse { documents }))
    }

    async fn events(
        &self,
        request: Request<EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let request = request.into_inner();
        let (kept, mut coming) = self.events.watch();
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(async move {
            let wanted = |event: &events::Event| {
                let Name { namespace, name } = &event.regarding.name;
                let is = |asked: &str, there: &str| asked.is_empty() || asked == there;
                // As Kubernetes has it: those of objects without a namespace are in `default`.
                let namespace = if namespace.is_empty() {
                    DEFAULT_NAMESPACE
                } else {
                    namespace
                };
                is(&request.kind, event.regarding.kind.as_str())
                    && is(&request.namespace, namespace)
                    && is(&request.name, name)
            };
            for event in kept.iter().filter(|event| wanted(event)) {
                if sender.send(Ok(told(event))).await.is_err() {
                    return;
                }
            }
            if !request.watch {
                return;
            }
            loop {
                let next = tokio::select! {
                    next = coming.recv() => next,
                    () = sender.closed() => return,
                };
                let answer = match next {
                    Ok(event) if wanted(&event) => Ok(told(&event)),
                    Ok(_) => continue,
                    Err(RecvError::Closed) => return,
                    Err(RecvError::Lagged(missed)) => {
                        let message = format!("{missed} events were missed; hint: ask again");
                        Err(refused(Code::DataLoss, "MISSED", &message))
                    }
                };
                let is_last = answer.is_err();
                if sender.send(answer).await.is_err() || is_last {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn apply(
        &self,
        request: Request<ApplyRequest>,
    ) -> Result<Response<ApplyResponse>, Status> {
        let text = request.into_inner().manifest;
        let begun = self.ask(Question::Begun).await?;
        let now = now();
        let applied = self.write(move |directories, loaded| {
            let directory = directories.first().map_or(Path::new("/"), PathBuf::as_path);
            let current = CurrentState {
                loaded,
                started: &begun,
            };
            let applied = sources::apply(directory, current, &text, &now, &mut new_uid);
            applied.map(|applied| (applied, None))
        });
        let objects = applied.await?.into_iter().map(|it| Applied {
            kind: it.kind.as_str().to_owned(),
            namespace: it.name.namespace,
            name: it.name.name,
            outcome: match it.outcome {
                ApplyOutcome::Created => applied::Outcome::Created,
                ApplyOutcome::Configured => applied::Outcome::Configured,
                ApplyOutcome::Unchanged => applied::Outcome::Unchanged,
            }
            .into(),
        });
        Ok(Response::new(ApplyResponse {
            objects: objects.collect(),
        }))
    }

    async fn delete(
        &self,
        request: Request<DeleteRequest>,
    ) -> Result<Response<DeleteResponse>, Status> {
        let request = request.into_inner();
        let kind = of_kind(&request.kind)?;
        let name = named(kind, request.namespace, request.name)?;
        let grace = request.grace_period_seconds;
        if grace.is_some_and(|grace| grace < 0) {
            return Err(invalid("grace_period_seconds is less than 0"));
        }
        let is_forced = request.force && kind == Kind::Pod;
        if is_forced && grace.is_some_and(|grace| grace > 0) {
            return Err(invalid(
                "force leaves a pod no time, and grace_period_seconds is more than 0",
            ));
        }
        // A pod ends first, and whatever else its users: the agent takes their files away then.
        let ends = matches!(kind, Kind::Pod | Kind::PersistentVolumeClaim);
        if ends {
            let grace = if is_forced { Some(0) } else { grace };
            let (name, now) = (name.clone(), now());
            let deleted = self.write(move |_, loaded| {
                sources::delete(loaded, kind, &name, &now, grace).map(|()| ((), None))
            });
            deleted.await?;
        }
        if is_forced || !ends {
            let which = name.clone();
            let removed =
                self.write(
                    move |_, loaded| match sources::remove(loaded, kind, &which) {
                        // The pod has ended since, and its file has gone with it.
                        Err(WriteError::NotFound(..)) if is_forced => Ok(((), None)),
                        removed => removed.map(|gone| ((), Some(gone))),
                    },
                );
            let removed = removed.await;
            // One that was made here goes on without a manifest, and has one where somebody has changed it.
            let is_none = matches!(&removed, Err(status) if status.code() == Code::NotFound);
            if kind == Kind::PersistentVolume && (is_none || removed.is_ok()) {
                let asked = self.ask(|answer| Question::DeleteVolume(name, answer));
                let made = asked.await?;
                if made.map_err(|message| refused(Code::Internal, "WRITE", &message))? {
                    return Ok(Response::new(DeleteResponse {}));
                }
            }
            removed?;
        }
        Ok(Response::new(DeleteResponse {}))
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Result<Response<ExecResponse>, Status> {
        let request = request.into_inner();
        if request.command.is_empty() {
            return Err(invalid("command is empty"));
        }
        let timeout = u64::try_from(request.timeout_seconds)
            .map_err(|_| invalid("timeout_seconds is less than 0"))?;
        let pod = named(Kind::Pod, request.namespace, request.pod)?;
        let container = self.container(&pod, &request.container).await?;
        if !container.is_running {
            let message = format!("Pod {pod}: the container doesn't run");
            return Err(refused(Code::FailedPrecondition, "NOT_RUNNING", &message));
        }
        let timeout = (timeout > 0).then(|| Duration::from_secs(timeout));
        let executed = self
            .cri
            .exec(&container.id, &request.command, timeout)
            .await;
        let executed = executed.map_err(|error| {
            let message = crust_state::sentence(&error);
            refused(Code::Internal, "EXEC", &format!("Pod {pod}: {message}"))
        })?;
        Ok(Response::new(ExecResponse {
            stdout: executed.stdout,
            stderr: executed.stderr,
            exit_code: executed.exit_code,
        }))
    }

    async fn logs(
        &self,
        request: Request<LogsRequest>,
    ) -> Result<Response<Self::LogsStream>, Status> {
        let request = request.into_inner();
        let pod = named(Kind::Pod, request.namespace, request.pod)?;
        let container = self.container(&pod, &request.container).await?;
        let run = container.id.clone();
        let log = if request.previous {
            let none = || {
                let message = format!("Pod {pod}: the container has no run before this one");
                refused(Code::NotFound, "NOT_FOUND", &message)
            };
            container.previous_log.ok_or_else(none)?
        } else {
            container.log
        };
        let (agent, name) = (self.agent.clone(), request.container);
        let is_running = move || {
            let (answer, answered) = oneshot::channel();
            let asked = agent.send(Question::Container(pod.clone(), name.clone(), answer));
            let run = run.clone();
            async move {
                let found = answered.await;
                let same = |it: Container| it.id == run && it.is_running;
                asked.is_ok() && found.is_ok_and(|found| found.is_ok_and(same))
            }
        };
        let follow = request.follow && !request.previous;
        let lines = logs::read(log, follow.then_some(is_running));
        let lines = lines.map(|text| {
            let failed = |message: String| refused(Code::Internal, "LOG", &message);
            text.map(|text| LogsResponse { text }).map_err(failed)
        });
        Ok(Response::new(Box::pin(lines)))
    }
}

fn of_kind(kind: &str) -> Result<Kind, Status> {
    let found = Kind::ALL.into_iter().find(|it| it.as_str() == kind);
    found.ok_or_else(|| invalid(&format!("{kind:?} is no kind of crustlet's")))
}

fn named(kind: Kind, namespace: String, name: String) -> Result<Name, Status> {
    if !is_name(&name) {
        return Err(invalid(&format!("{name:?} is no name of a {kind}")));
    }
    let namespace = match namespace {
        _ if !kind.is_namespaced() => String::new(),
        namespace if namespace.is_empty() => DEFAULT_NAMESPACE.to_owned(),
        namespace => namespace,
    };
    Ok(Name { namespace, name })
}

fn told(event: &events::Event) -> Event {
    let kind = match event.kind {
        events::EventType::Normal => Type::Normal,
        events::EventType::Warning => Type::Warning,
    };
    let milliseconds = |at: SystemTime| {
        let since = at
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
    };
    Event {
        r#type: kind.into(),
        reason: event.reason.to_owned(),
        message: event.message.clone(),
        kind: event.regarding.kind.as_str().to_owned(),
        namespace: event.regarding.name.namespace.clone(),
        name: event.regarding.name.name.clone(),
        uid: event.regarding.uid.clone(),
        first_ms: milliseconds(event.first_seen),
        last_ms: milliseconds(event.last_seen),
        count: event.count,
    }
}

/// As in `metadata.creationTimestamp`.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
