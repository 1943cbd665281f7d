//! An in-memory storage for tests. It follows S3's rules for multipart uploads (a completion names each part
//! by the id it got when it was sent), several registries share it by name, and it fails on demand.
//! Also finds the S3 server that the environment names.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::sync::Notify;
use url::Url;
use uuid::Uuid;

use super::open::StorageClients;
use crate::report;

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing is done, and an error is returned.
    Refused,
    /// It is done, but an error is returned.
    ResponseLost,
    /// Nothing is done until `release`; then it is.
    BlockedBefore,
    /// It is done, but does not return until `release`.
    BlockedAfter,
}

/// The parts of one multipart upload by number, each with its id.
type Parts = BTreeMap<usize, (String, Bytes)>;

#[derive(Default)]
pub(crate) struct Storage {
    memory: InMemory,
    uploads: Mutex<HashMap<String, Parts>>,
    plan: Mutex<Plan>,
    released: Notify,
}

#[derive(Default)]
struct Plan {
    /// The next operations of each kind fail, this many times.
    by_kind: Vec<(&'static str, Fault, usize)>,
    /// The operation with this number, counted from now, fails.
    by_number: Option<(usize, Fault)>,
    done: usize,
    held: usize,
}

static STORAGES: Mutex<Option<HashMap<String, Arc<Storage>>>> = Mutex::new(None);

/// A new prefix in the bucket of LODE_TEST_S3. A missing bucket is reported as a skip.
pub(crate) fn bucket_for_test() -> Option<Url> {
    let Ok(bucket) = std::env::var("LODE_TEST_S3") else {
        report::skip(&report::current_test(), "not run on S3, because LODE_TEST_S3 is not set");
        return None;
    };
    let url = format!("{}/{}", bucket.trim_end_matches('/'), Uuid::new_v4().simple());
    Some(url.parse().expect("LODE_TEST_S3 is a URL"))
}

/// The storage of that name, created on first use.
pub(crate) fn storage(name: &str) -> Arc<Storage> {
    let mut storages = lock(&STORAGES);
    storages.get_or_insert_default().entry(name.to_owned()).or_default().clone()
}

pub(super) fn test_clients(name: &str) -> StorageClients {
    let storage = storage(name);
    StorageClients {
        store: Arc::new(TestStore(storage.clone())),
        multipart: Arc::new(TestStore(storage)),
        signer: None,
        is_s3: false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Storage {
    /// The next `times` operations of this kind fail: put, get, head, list, delete, create, part, complete,
    /// abort; `any`; `assemble`, which is held between the end of an upload and the appearance of its object.
    pub(crate) fn fail(&self, kind: &'static str, fault: Fault, times: usize) {
        lock(&self.plan).by_kind.push((kind, fault, times));
    }

    /// The operation after `number` more fails.
    pub(crate) fn fail_at(&self, number: usize, fault: Fault) {
        let mut plan = lock(&self.plan);
        plan.done = 0;
        plan.by_number = Some((number, fault));
    }

    /// Ends all failures; held operations continue.
    pub(crate) fn release(&self) {
        *lock(&self.plan) = Plan::default();
        self.released.notify_waiters();
    }

    /// Ends failures for new operations; held ones never continue, as if their server had died.
    pub(crate) fn forget_plan(&self) {
        *lock(&self.plan) = Plan::default();
    }

    /// How many operations are held.
    pub(crate) fn held(&self) -> usize {
        lock(&self.plan).held
    }

    /// Multipart uploads that are neither completed nor aborted.
    pub(crate) fn unfinished(&self) -> usize {
        lock(&self.uploads).len()
    }

    /// Their parts, which a provider would charge for.
    pub(crate) fn unfinished_parts(&self) -> usize {
        lock(&self.uploads).values().map(BTreeMap::len).sum()
    }

    fn fault(&self, kind: &'static str) -> Option<Fault> {
        let mut plan = lock(&self.plan);
        let number = plan.done;
        plan.done += 1;
        let fault = match plan.by_number {
            Some((at, fault)) if at == number => Some(fault),
            _ => {
                let due =
                    plan.by_kind.iter_mut().find(|(of, _, left)| (*of == kind || *of == "any") && *left > 0);
                due.map(|(_, fault, left)| {
                    *left -= 1;
                    *fault
                })
            }
        };
        plan.held += usize::from(matches!(fault, Some(Fault::BlockedBefore | Fault::BlockedAfter)));
        fault
    }

    /// Holds the completion of a multipart upload that no longer exists, whose object does not exist yet.
    async fn assemble(&self) {
        let is_held = {
            let mut plan = lock(&self.plan);
            let due = plan.by_kind.iter_mut().find(|(of, _, left)| *of == "assemble" && *left > 0);
            let is_held = due.map(|(_, _, left)| *left -= 1).is_some();
            plan.held += usize::from(is_held);
            is_held
        };
        if is_held {
            self.released.notified().await;
        }
    }

    async fn run<T>(&self, kind: &'static str, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self.fault(kind) {
            None => work.await,
            Some(Fault::Refused) => Err(failed(kind)),
            Some(Fault::ResponseLost) => {
                work.await?;
                Err(failed(kind))
            }
            Some(Fault::BlockedBefore) => {
                self.released.notified().await;
                work.await
            }
            Some(Fault::BlockedAfter) => {
                let done = work.await;
                self.released.notified().await;
                done
            }
        }
    }
}

fn failed(kind: &'static str) -> Error {
    Error::Generic { store: "testing", source: format!("{kind} fails in this test").into() }
}

fn no_upload(path: &Path) -> Error {
    Error::NotFound { path: path.to_string(), source: "NoSuchUpload".into() }
}

struct TestStore(Arc<Storage>);

impl fmt::Debug for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Door")
    }
}

impl fmt::Display for TestStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("testing")
    }
}

#[async_trait]
impl ObjectStore for TestStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.0.run("put", self.0.memory.put_opts(location, payload, options)).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.0.memory.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let kind = if options.head { "head" } else { "get" };
        self.0.run(kind, self.0.memory.get_opts(location, options)).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let storage = self.0.clone();
        let delete = move |location: Result<Path>| {
            let storage = storage.clone();
            async move {
                let location = location?;
                storage.run("delete", storage.memory.delete(&location)).await.map(|()| location)
            }
        };
        locations.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (storage, listed) = (self.0.clone(), self.0.memory.list(prefix));
        let outcome = async move { storage.run("list", async { Ok(()) }).await };
        stream::once(outcome)
            .flat_map(|outcome| match outcome {
                Ok(()) => stream::empty().boxed(),
                Err(error) => stream::iter([Err(error)]).boxed(),
            })
            .chain(listed)
            .boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.0.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.0.memory.copy_opts(from, to, options).await
    }
}

#[async_trait]
impl MultipartStore for TestStore {
    async fn create_multipart(&self, _: &Path) -> Result<String> {
        let create = async {
            let id = Uuid::new_v4().to_string();
            lock(&self.0.uploads).insert(id.clone(), BTreeMap::new());
            Ok(id)
        };
        self.0.run("create", create).await
    }

    async fn put_part(&self, path: &Path, id: &String, number: usize, payload: PutPayload) -> Result<PartId> {
        let put = async {
            let bytes = Bytes::from(payload);
            let etag = lode_model::digest::Digest::sha256(&bytes).hex().to_owned();
            let mut uploads = lock(&self.0.uploads);
            let parts = uploads.get_mut(id).ok_or_else(|| no_upload(path))?;
            parts.insert(number, (etag.clone(), bytes));
            Ok(PartId { content_id: etag })
        };
        self.0.run("part", put).await
    }

    async fn complete_multipart(&self, path: &Path, id: &String, parts: Vec<PartId>) -> Result<PutResult> {
        let complete = async {
            let sent = lock(&self.0.uploads).get(id).cloned().ok_or_else(|| no_upload(path))?;
            let mut whole = Vec::new();
            for (number, part) in parts.iter().enumerate() {
                match sent.get(&number) {
                    Some((etag, bytes)) if *etag == part.content_id => whole.push(bytes.clone()),
                    _ => return Err(Error::Generic { store: "testing", source: "400 InvalidPart".into() }),
                }
            }
            lock(&self.0.uploads).remove(id);
            self.0.assemble().await;
            self.0.memory.put(path, PutPayload::from_iter(whole)).await
        };
        self.0.run("complete", complete).await
    }

    async fn abort_multipart(&self, path: &Path, id: &String) -> Result<()> {
        let abort = async { lock(&self.0.uploads).remove(id).map(drop).ok_or_else(|| no_upload(path)) };
        self.0.run("abort", abort).await
    }
}
