//! Several `lode serve` replicas on one Postgres and one bucket, with a round-robin proxy in front.
//! A replica can be killed and restarted at the same address while the others keep running.

use std::net::SocketAddr;
use std::path::Path;

use crate::command::Lode;
use crate::oci::Registry;
use crate::server::{Folder, Options, Server};
use crate::services::Backends;
use crate::switch::RoundRobinProxy;

/// Replicas that share a database and a blob store.
pub struct Cluster {
    replicas: Vec<Replica>,
    options: Options,
}

struct Replica {
    server: Option<Server>,
    folder: Folder,
    address: SocketAddr,
}

impl Cluster {
    /// Starts replicas, each with its own data folder, and waits until all are ready.
    pub async fn start(n_replicas: usize, backing: &Backends, options: Options) -> Self {
        let options = options.with_backends(backing);
        let started = (0..n_replicas).map(|_| {
            let options = options.clone();
            async move {
                let folder = Folder::new();
                let server = folder.start(options).await;
                Replica { address: server.address, server: Some(server), folder }
            }
        });
        Self { replicas: futures::future::join_all(started).await, options }
    }

    /// A client of one replica.
    #[must_use]
    pub fn registry(&self, replica: usize) -> Registry {
        Registry::new(format!("http://{}", self.replicas[replica].address))
    }

    /// A client of each replica.
    #[must_use]
    pub fn registries(&self) -> Vec<Registry> {
        (0..self.replicas.len()).map(|replica| self.registry(replica)).collect()
    }

    /// The program as a client of one replica.
    ///
    /// # Panics
    ///
    /// If the replica has been killed.
    #[must_use]
    pub fn lode(&self, replica: usize) -> Lode {
        self.server(replica).lode()
    }

    /// A replica's process.
    ///
    /// # Panics
    ///
    /// If the replica has been killed.
    #[must_use]
    pub fn server(&self, replica: usize) -> &Server {
        self.replicas[replica].server.as_ref().expect("the replica runs")
    }

    /// The addresses of the replicas.
    #[must_use]
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.replicas.iter().map(|replica| replica.address).collect()
    }

    /// A proxy that sends each request to the next replica.
    #[must_use]
    pub fn switch(&self) -> RoundRobinProxy {
        RoundRobinProxy::start(self.replicas.iter().map(|replica| replica.address).collect())
    }

    /// Kills a replica with SIGKILL.
    pub fn kill(&mut self, replica: usize) {
        if let Some(server) = self.replicas[replica].server.take() {
            server.kill();
        }
    }

    /// Stops a replica gracefully, as its service manager does.
    ///
    /// # Panics
    ///
    /// If the replica does not run, or reports a failure.
    pub async fn stop(&mut self, replica: usize) {
        let server = self.replicas[replica].server.take().expect("the replica runs");
        assert!(server.stop().await.success(), "the replica failed when it stopped");
    }

    /// Restarts a killed or stopped replica at its address.
    pub async fn restart(&mut self, replica: usize) {
        let Replica { server, folder, address } = &mut self.replicas[replica];
        let options = self.options.clone().listen(address.to_string());
        *server = Some(folder.start(options).await);
    }
}

/// A registry at one address: a single server, or replicas behind a proxy.
pub struct Deployment {
    behind: Topology,
    folder: Folder,
}

enum Topology {
    One(Server),
    Replicas(Cluster, RoundRobinProxy),
}

impl Deployment {
    /// One server with SQLite and its data folder.
    pub async fn single() -> Self {
        let folder = Folder::new();
        Self { behind: Topology::One(folder.serve().await), folder }
    }

    /// Two replicas behind a round-robin proxy. Reports a skip if Postgres or S3 is missing.
    pub async fn replicated(test: &str) -> Option<Self> {
        let backing = Backends::shared(test)?;
        let cluster = Cluster::start(2, &backing, Options::new()).await;
        let switch = cluster.switch();
        Some(Self { behind: Topology::Replicas(cluster, switch), folder: Folder::new() })
    }

    /// A client of it.
    #[must_use]
    pub fn registry(&self) -> Registry {
        match &self.behind {
            Topology::One(server) => server.registry(),
            Topology::Replicas(_, switch) => Registry::new(switch.url()),
        }
    }

    /// A scratch folder for the test's files.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.folder.path()
    }

    /// Checks that database and blob store agree and that each replica handled requests.
    ///
    /// # Panics
    ///
    /// If a check fails.
    pub async fn check(&self) {
        let server = match &self.behind {
            Topology::One(server) => server,
            Topology::Replicas(cluster, switch) => {
                let served = switch.served();
                assert!(served.iter().all(|count| *count > 1), "a replica handled no requests: {served:?}");
                cluster.server(0)
            }
        };
        server.lode().run(&["fsck", "--verify"]).await.expect_success();
    }
}
