//! Several `lode serve` processes on one Postgres and one bucket, and a proxy that sends each request to the next of them.
//! A replica is killed and started again at the same address while the others go on.

use std::net::SocketAddr;
use std::path::Path;

use crate::command::Lode;
use crate::oci::Registry;
use crate::server::{Folder, Options, Server};
use crate::services::Backing;
use crate::switch::Switch;

/// Replicas that share everything but the process.
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
    /// Starts that many replicas, each on a data folder of its own, and waits until all are ready.
    pub async fn start(n_replicas: usize, backing: &Backing, options: Options) -> Self {
        let options = options.on(backing);
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
    /// When it has been killed.
    #[must_use]
    pub fn lode(&self, replica: usize) -> Lode {
        self.server(replica).lode()
    }

    /// A replica's process.
    ///
    /// # Panics
    ///
    /// When it has been killed.
    #[must_use]
    pub fn server(&self, replica: usize) -> &Server {
        self.replicas[replica].server.as_ref().expect("the replica runs")
    }

    /// A proxy that sends each request to the next replica.
    #[must_use]
    pub fn switch(&self) -> Switch {
        Switch::start(self.replicas.iter().map(|replica| replica.address).collect())
    }

    /// Ends a replica the hard way.
    pub fn kill(&mut self, replica: usize) {
        if let Some(server) = self.replicas[replica].server.take() {
            server.kill();
        }
    }

    /// Starts a killed replica again at its address.
    pub async fn restart(&mut self, replica: usize) {
        let Replica { server, folder, address } = &mut self.replicas[replica];
        let options = self.options.clone().listen(address.to_string());
        *server = Some(folder.start(options).await);
    }
}

/// A registry at one address, whatever stands behind it.
pub struct Front {
    behind: Behind,
    folder: Folder,
}

enum Behind {
    One(Server),
    Replicas(Cluster, Switch),
}

impl Front {
    /// One process on SQLite and its data folder.
    pub async fn one() -> Self {
        let folder = Folder::new();
        Self { behind: Behind::One(folder.serve().await), folder }
    }

    /// Two replicas behind a proxy that switches at each request; without the services for it, a reported skip.
    pub async fn switching(test: &str) -> Option<Self> {
        let backing = Backing::shared(test)?;
        let cluster = Cluster::start(2, &backing, Options::new()).await;
        let switch = cluster.switch();
        Some(Self { behind: Behind::Replicas(cluster, switch), folder: Folder::new() })
    }

    /// A client of it.
    #[must_use]
    pub fn registry(&self) -> Registry {
        match &self.behind {
            Behind::One(server) => server.registry(),
            Behind::Replicas(_, switch) => Registry::new(switch.url()),
        }
    }

    /// A scratch folder for what the test writes.
    #[must_use]
    pub fn scratch(&self) -> &Path {
        self.folder.path()
    }

    /// Index and bytes agree, and where there are replicas each of them took its share.
    ///
    /// # Panics
    ///
    /// When not.
    pub async fn check(&self) {
        let server = match &self.behind {
            Behind::One(server) => server,
            Behind::Replicas(cluster, switch) => {
                let served = switch.served();
                assert!(served.iter().all(|count| *count > 1), "each replica takes requests: {served:?}");
                cluster.server(0)
            }
        };
        server.lode().run(&["fsck", "--verify"]).await.ok();
    }
}
