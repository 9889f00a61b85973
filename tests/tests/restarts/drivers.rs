//! Drivers that register late, are replaced, and disappear.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use crust_proto::registration::v1::registration_server::{Registration, RegistrationServer};
use crust_proto::registration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use runcrust_tests::csi::DRIVER;
use runcrust_tests::mounts::{mount, unmount};
use runcrust_tests::node::{WAIT_TIMEOUT, utf8};
use runcrust_tests::{LoopDevice, on_each_delegate};
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::scene::{Mounting, Scene, pod_with};

/// Replaces the harness's driver by one without volumes.
const NO_DRIVER: &str = "--csi=none.example=unix:///nowhere/csi.sock";

/// The registrar of a driver, which registers it with kubelet. Dropping it removes its socket.
struct Registrar {
    socket: PathBuf,
    status: mpsc::Receiver<RegistrationStatus>,
    runtime: Option<Runtime>,
}

struct RegistrationService {
    info: PluginInfo,
    sender: mpsc::Sender<RegistrationStatus>,
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(self.info.clone()))
    }

    async fn notify_registration_status(
        &self,
        status: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let _ = self.sender.send(status.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

impl Registrar {
    /// Registers the harness's driver, which listens at `endpoint`.
    fn start(scene: &Scene, name: &str, endpoint: &Path) -> Self {
        let registry = scene.crustlet.root().join("plugins_registry");
        let mut missing = fs::DirBuilder::new();
        missing
            .recursive(true)
            .mode(0o750)
            .create(&registry)
            .expect("the registry");
        let socket = registry.join(name);
        let (sender, receiver) = mpsc::channel();
        let info = PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: utf8(endpoint).to_owned(),
            supported_versions: vec!["1.12.0".to_owned()],
        };
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build();
        let runtime = runtime.expect("a tokio runtime");
        let listener = {
            let _inside = runtime.enter();
            // The socket is listening before it gets its name.
            let hidden = registry.join(".new");
            let listener = UnixListener::bind(&hidden).expect("a registrar's socket");
            fs::rename(&hidden, &socket).expect("rename");
            listener
        };
        let service = RegistrationServer::new(RegistrationService { info, sender });
        let serve = Server::builder()
            .add_service(service)
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(serve);
        Self {
            socket,
            status: receiver,
            runtime: Some(runtime),
        }
    }

    fn inode(&self) -> u64 {
        fs::metadata(&self.socket).expect("the socket").ino()
    }

    /// Waits for the notification that the driver is registered.
    #[track_caller]
    fn wait_registered(&self) {
        let status = self
            .status
            .recv_timeout(WAIT_TIMEOUT)
            .expect("a notification");
        assert!(status.plugin_registered, "{}", status.error);
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

on_each_delegate! {
    fn volumes_are_removed_once_a_late_driver_registers(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let (one, two) = (scene.claim("one"), scene.claim("two"));
        let pods = [pod_with("deferred", &one, Mounting::Deferred), pod_with("plain", &two, Mounting::Plain)];
        for pod in &pods {
            scene.run(pod);
        }
        scene.crustlet.kill();
        for pod in &pods {
            scene.crustlet.remove(pod.name());
        }
        scene.clear_requests();
        scene.start(&[NO_DRIVER]);
        for storage in [&one, &two] {
            scene.crustlet.wait_volume(&storage.volume.id, "held", |volume| {
                let message = &volume["status"]["mounts"][0]["message"];
                message.as_str().is_some_and(|it| it.contains("not found in the list of registered CSI drivers"))
            });
        }
        // The records of the pods stay as long as their volumes.
        for pod in &pods {
            assert_eq!(scene.sandboxes(pod), Vec::<String>::new());
            assert!(scene.crustlet.has("pod", pod.name()));
        }
        assert_eq!(scene.relay.steps(), Vec::<&str>::new());
        let registrar = Registrar::start(&scene, "late.sock", scene.relay.socket());
        registrar.wait_registered();
        scene.assert_nothing_left(&[&one, &two]);
    }

    fn a_driver_is_registered_replaced_and_removed(delegate: Delegate) {
        let scene = Scene::new(delegate);
        let storage = scene.claim("data");
        scene.crustlet.kill();
        scene.start(&[NO_DRIVER]);
        let pod = pod_with("web", &storage, Mounting::Deferred);
        scene.apply_pod(&pod);
        scene.crustlet.wait_event_containing("pod/web", "FailedMount", DRIVER);
        let first = Registrar::start(&scene, "a.sock", scene.relay.socket());
        first.wait_registered();
        scene.wait_running(&pod);

        // Another driver replaces the first one while the pod runs. Its registrar has the same socket, but its endpoint
        // differs.
        drop(first);
        let second = Registrar::start(&scene, "a.sock", scene.csi.socket());
        second.wait_registered();
        scene.clear_requests();
        scene.end(&pod);
        scene.assert_nothing_left(&[&storage]);
        assert_eq!(scene.relay.steps(), Vec::<&str>::new(), "the second driver was called");

        // The next crustlet finds the registered driver, until its socket is removed.
        scene.crustlet.kill();
        scene.start(&[NO_DRIVER]);
        second.wait_registered();
        scene.run(&pod);
        drop(second);
        scene.crustlet.remove("web");
        scene.crustlet.wait_volume(&storage.volume.id, "held", |volume| {
            let message = &volume["status"]["mounts"][0]["message"];
            message.as_str().is_some_and(|it| it.contains("not found in the list of registered CSI drivers"))
        });
        let third = Registrar::start(&scene, "b.sock", scene.relay.socket());
        third.wait_registered();
        scene.assert_nothing_left(&[&storage]);
        scene.assert_unpublished(Mounting::Deferred);
    }
    fn a_driver_replaced_at_the_same_inode_registers(delegate: Delegate) {
        let scene = Scene::new(delegate);
        scene.crustlet.kill();
        let registry = scene.crustlet.root().join("plugins_registry");
        // Only this test allocates inodes on this file system.
        let disk = LoopDevice::ext4(scene.node.dir(), 8);
        mount(disk.path(), &registry, disk.fstype());
        scene.start(&[NO_DRIVER]);
        let first = Registrar::start(&scene, "a.sock", scene.relay.socket());
        first.wait_registered();
        let inode = first.inode();
        drop(first);
        let second = Registrar::start(&scene, "a.sock", scene.csi.socket());
        assert_eq!(second.inode(), inode);
        second.wait_registered();
        drop(second);
        scene.crustlet.kill();
        unmount(&registry);
    }
}
