//! The service `crustlet.v1`, which the commands (`crustlet get`, `run`, …) call.
//!
//! The agent answers queries about objects. Manifests are written here, one call at a time, and the agent reads them
//! before the call is answered.

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

/// A query to the agent. The agent sends the answer over the channel.
#[derive(Debug)]
pub(crate) enum AgentQuery {
    /// Returns the documents of the selected objects.
    List(ObjectSelector, oneshot::Sender<Vec<String>>),
    /// Returns a container of a pod. An empty name selects the pod's first container.
    Container(
        Name,
        String,
        oneshot::Sender<Result<ContainerInstance, String>>,
    ),
    /// Returns the deferred volumes of all pods that have a manifest and have started.
    DeferredVolumes(oneshot::Sender<BTreeMap<Name, BTreeSet<String>>>),
    /// Deletes a provisioned `PersistentVolume`. Returns false if the volume wasn't provisioned.
    DeleteVolume(Name, oneshot::Sender<Result<bool, String>>),
    /// Reads the manifests again. Contains the file that the call has removed, if any.
    Reload(Option<PathBuf>, oneshot::Sender<()>),
}

/// The selection of objects to list.
#[derive(Debug)]
pub(crate) struct ObjectSelector {
    /// The kind. `None` selects the volumes of the node, which have no manifests.
    pub(crate) kind: Option<Kind>,
    /// The namespace. Empty selects all.
    pub(crate) namespace: String,
    /// The name. Empty selects all.
    pub(crate) name: String,
}

/// The newest instance of a pod's container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContainerInstance {
    /// The ID in the container runtime.
    pub(crate) id: String,
    pub(crate) is_running: bool,
    pub(crate) log: PathBuf,
    /// The path of the previous instance's log, if that instance has ended.
    pub(crate) previous_log: Option<PathBuf>,
}

/// The implementation of the service.
#[derive(Debug)]
pub(crate) struct Api {
    directories: Vec<PathBuf>,
    events: Events,
    cri: Cri,
    agent: mpsc::UnboundedSender<AgentQuery>,
    writing: Arc<Mutex<()>>,
}

/// Returns the status of a failed call.
fn error_status(code: Code, reason: &str, message: &str) -> Status {
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
    error_status(Code::InvalidArgument, "INVALID", message)
}

fn agent_stopped<E>(_: E) -> Status {
    error_status(
        Code::Unavailable,
        "ENDING",
        "crustlet is shutting down; hint: retry once it has been restarted",
    )
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
        error_status(code, reason, &crust_state::error_message(&error))
    }
}

impl Api {
    pub(crate) fn new(
        directories: Vec<PathBuf>,
        events: Events,
        cri: Cri,
        agent: mpsc::UnboundedSender<AgentQuery>,
    ) -> Self {
        Self {
            directories,
            events,
            cri,
            agent,
            writing: Arc::default(),
        }
    }

    async fn query_agent<T>(
        &self,
        query: impl FnOnce(oneshot::Sender<T>) -> AgentQuery,
    ) -> Result<T, Status> {
        let (answer, answered) = oneshot::channel();
        self.agent.send(query(answer)).map_err(agent_stopped)?;
        answered.await.map_err(agent_stopped)
    }

    async fn container(&self, pod: &Name, container: &str) -> Result<ContainerInstance, Status> {
        let query = |answer| AgentQuery::Container(pod.clone(), container.to_owned(), answer);
        let found = self.query_agent(query).await?;
        found.map_err(|message| error_status(Code::NotFound, "NOT_FOUND", &message))
    }

    /// Calls `write`, which changes the manifests based on their current content, and has the agent read them again.
    /// `write` returns its result and the file that it removed, if any.
    async fn write<T: Send + 'static>(
        &self,
        write: impl FnOnce(
            &[PathBuf],
            &sources::LoadedManifests,
        ) -> Result<(T, Option<PathBuf>), WriteError>
        + Send
        + 'static,
    ) -> Result<T, Status> {
        // The task continues if the caller hangs up, because a partial change would be useless.
        let lock = Arc::clone(&self.writing).lock_owned().await;
        let directories = self.directories.clone();
        let written = tokio::task::spawn_blocking(move || {
            let _lock = lock;
            let loaded = ManifestDirectories::new(&directories).read(&[], Instant::now());
            write(&directories, &loaded)
        });
        let (result, removed) = match written.await.map_err(agent_stopped)? {
            Ok((written, removed)) => (Ok(written), removed),
            // A failed change may have been applied in part.
            Err(error) => (Err(error), None),
        };
        self.query_agent(|answer| AgentQuery::Reload(removed, answer))
            .await?;
        Ok(result?)
    }
}

type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl Node for Api {
    type EventsStream = ResponseStream<Event>;
    type LogsStream = ResponseStream<LogsResponse>;

    async fn list(&self, request: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let ListRequest {
            kind,
            namespace,
            name,
        } = request.into_inner();
        let kind = match kind.as_str() {
            crate::volumes::view::KIND => None,
            kind => Some(parse_kind(kind)?),
        };
        let selector = ObjectSelector {
            kind,
            namespace,
            name,
        };
        let documents = self
            .query_agent(|answer| AgentQuery::List(selector, answer))
            .await?;
        Ok(Response::new(ListResponse { documents }))
    }

    async fn events(
        &self,
        request: Request<EventsRequest>,
    ) -> Result<Response<Self::EventsStream>, Status> {
        let request = request.into_inner();
        let (past_events, mut new_events) = self.events.watch();
        let (sender, receiver) = mpsc::channel(64);
        tokio::spawn(async move {
            let is_selected = |event: &events::Event| {
                let Name { namespace, name } = &event.regarding.name;
                let matches =
                    |selected: &str, value: &str| selected.is_empty() || selected == value;
                // As in Kubernetes, events about objects without a namespace are in the namespace `default`.
                let namespace = if namespace.is_empty() {
                    DEFAULT_NAMESPACE
                } else {
                    namespace
                };
                matches(&request.kind, event.regarding.kind.as_str())
                    && matches(&request.namespace, namespace)
                    && matches(&request.name, name)
            };
            for event in past_events.iter().filter(|event| is_selected(event)) {
                if sender.send(Ok(to_proto(event))).await.is_err() {
                    return;
                }
            }
            if !request.watch {
                return;
            }
            loop {
                let next = tokio::select! {
                    next = new_events.recv() => next,
                    () = sender.closed() => return,
                };
                let answer = match next {
                    Ok(event) if is_selected(&event) => Ok(to_proto(&event)),
                    Ok(_) => continue,
                    Err(RecvError::Closed) => return,
                    Err(RecvError::Lagged(missed)) => {
                        let message =
                            format!("{missed} events were missed; hint: run the command again");
                        Err(error_status(Code::DataLoss, "MISSED", &message))
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
        let deferred = self.query_agent(AgentQuery::DeferredVolumes).await?;
        let now = now();
        let applied = self.write(move |directories, loaded| {
            let directory = directories.first().map_or(Path::new("/"), PathBuf::as_path);
            let current = CurrentState {
                loaded,
                started: &deferred,
            };
            let applied = sources::apply(directory, current, &text, &now, &mut new_uid);
            applied.map(|applied| (applied, None))
        });
        let objects = applied.await?.into_iter().map(|object| Applied {
            kind: object.kind.as_str().to_owned(),
            namespace: object.name.namespace,
            name: object.name.name,
            outcome: match object.outcome {
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
        let kind = parse_kind(&request.kind)?;
        let name = parse_name(kind, request.namespace, request.name)?;
        let grace = request.grace_period_seconds;
        if grace.is_some_and(|grace| grace < 0) {
            return Err(invalid("grace_period_seconds is less than 0"));
        }
        let is_forced = request.force && kind == Kind::Pod;
        if is_forced && grace.is_some_and(|grace| grace > 0) {
            return Err(invalid(
                "force ends a pod at once, but grace_period_seconds is more than 0",
            ));
        }
        // A pod has to end first, and so do the pods that use a claim. The agent removes the manifest afterwards.
        let has_to_end = matches!(kind, Kind::Pod | Kind::PersistentVolumeClaim);
        if has_to_end {
            let grace = if is_forced { Some(0) } else { grace };
            let (name, now) = (name.clone(), now());
            let deleted = self.write(move |_, loaded| {
                sources::delete(loaded, kind, &name, &now, grace).map(|()| ((), None))
            });
            deleted.await?;
        }
        if is_forced || !has_to_end {
            let target = name.clone();
            let removed =
                self.write(
                    move |_, loaded| match sources::remove(loaded, kind, &target) {
                        // The pod has ended in the meantime, and the agent has removed the manifest.
                        Err(WriteError::NotFound(..)) if is_forced => Ok(((), None)),
                        removed => removed.map(|file| ((), Some(file))),
                    },
                );
            let removed = removed.await;
            // A provisioned volume need not have a manifest, but may have one.
            let has_no_manifest =
                matches!(&removed, Err(status) if status.code() == Code::NotFound);
            if kind == Kind::PersistentVolume && (has_no_manifest || removed.is_ok()) {
                let query = self.query_agent(|answer| AgentQuery::DeleteVolume(name, answer));
                let is_provisioned = query.await?;
                if is_provisioned
                    .map_err(|message| error_status(Code::Internal, "WRITE", &message))?
                {
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
        let pod = parse_name(Kind::Pod, request.namespace, request.pod)?;
        let container = self.container(&pod, &request.container).await?;
        if !container.is_running {
            let message = format!("Pod {pod}: the container is not running");
            return Err(error_status(
                Code::FailedPrecondition,
                "NOT_RUNNING",
                &message,
            ));
        }
        let timeout = (timeout > 0).then(|| Duration::from_secs(timeout));
        let executed = self
            .cri
            .exec(&container.id, &request.command, timeout)
            .await;
        let executed = executed.map_err(|error| {
            let message = crust_state::error_message(&error);
            error_status(Code::Internal, "EXEC", &format!("Pod {pod}: {message}"))
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
        let pod = parse_name(Kind::Pod, request.namespace, request.pod)?;
        let container = self.container(&pod, &request.container).await?;
        let id = container.id.clone();
        let log = if request.previous {
            let no_previous_run = || {
                let message = format!("Pod {pod}: the container has no previous run");
                error_status(Code::NotFound, "NOT_FOUND", &message)
            };
            container.previous_log.ok_or_else(no_previous_run)?
        } else {
            container.log
        };
        let (agent, name) = (self.agent.clone(), request.container);
        let is_running = move || {
            let (answer, answered) = oneshot::channel();
            let query = agent.send(AgentQuery::Container(pod.clone(), name.clone(), answer));
            let id = id.clone();
            async move {
                let latest = answered.await;
                let is_running =
                    |instance: ContainerInstance| instance.id == id && instance.is_running;
                query.is_ok() && latest.is_ok_and(|latest| latest.is_ok_and(is_running))
            }
        };
        let follow = request.follow && !request.previous;
        let lines = logs::read(log, follow.then_some(is_running));
        let lines = lines.map(|text| {
            let log_error = |message: String| error_status(Code::Internal, "LOG", &message);
            text.map(|text| LogsResponse { text }).map_err(log_error)
        });
        Ok(Response::new(Box::pin(lines)))
    }
}

fn parse_kind(kind: &str) -> Result<Kind, Status> {
    let found = Kind::ALL
        .into_iter()
        .find(|candidate| candidate.as_str() == kind);
    found.ok_or_else(|| invalid(&format!("{kind:?} is not a kind known to crustlet")))
}

fn parse_name(kind: Kind, namespace: String, name: String) -> Result<Name, Status> {
    if !is_name(&name) {
        return Err(invalid(&format!(
            "{name:?} is not a valid name for a {kind}"
        )));
    }
    let namespace = match namespace {
        _ if !kind.is_namespaced() => String::new(),
        namespace if namespace.is_empty() => DEFAULT_NAMESPACE.to_owned(),
        namespace => namespace,
    };
    Ok(Name { namespace, name })
}

fn to_proto(event: &events::Event) -> Event {
    let kind = match event.kind {
        events::EventType::Normal => Type::Normal,
        events::EventType::Warning => Type::Warning,
    };
    let milliseconds = |time: SystemTime| {
        let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH);
        let since_epoch = since_epoch.unwrap_or_default();
        i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
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

/// Returns the current time in the form of `metadata.creationTimestamp`.
fn now() -> String {
    humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
}
