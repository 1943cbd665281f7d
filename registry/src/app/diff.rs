//! Compares two models of the registry tensor by tensor. Records are sent as they are found, so that a long
//! comparison shows its progress. Bytes are read a few rows at a time, and only for tensors that are not
//! stored as the same bytes.

use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use lode_model::diff::{self, Blobs, Change, CompareError, Difference, Hints, SizeComparison};
use lode_model::manifest::Manifest;
use lode_model::read_at::ReadAt;
use lode_model::recognise::Artifact;
use lode_model::reference::{Reference, Repository};
use lode_model::tensor::TensorInfo;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::Registry;
use super::read_at::BlobReader;
use crate::Error;
use crate::auth::Caller;
use crate::error::chain;

/// How many pairs of one comparison are read at a time.
const MAX_CONCURRENT_PAIRS: usize = 2;

/// The result for one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffStatus {
    /// Stored as the same bytes.
    Same,
    /// Stored differently, with the same values.
    SameValues,
    Changed,
    OnlyHere,
    OnlyThere,
}

/// One side of a pair.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct DiffSide {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    pub size_bytes: u64,
}

/// One tensor of either model.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct TensorDiff {
    /// The name on this side, or on the other side if only that one has the tensor.
    pub name: String,
    pub status: DiffStatus,
    /// The norm of the difference relative to the norm of this side's values; null if unknown.
    pub relative_error: Option<f64>,
    /// The largest difference of two values.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub largest_difference: Option<f64>,
    /// Values that are infinite or NaN on one side only.
    #[serde(skip_serializing_if = "is_zero")]
    pub not_finite: u64,
    /// Why the values were not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    pub here: Option<DiffSide>,
    pub there: Option<DiffSide>,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// The last record of a comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct DiffTotal {
    pub same: u64,
    pub same_values: u64,
    pub changed: u64,
    pub only_here: u64,
    pub only_there: u64,
    /// The size of the layers on each side, and of those that both have.
    pub bytes_here: u64,
    pub bytes_there: u64,
    pub bytes_shared: u64,
}

impl DiffTotal {
    fn count(&mut self, status: DiffStatus) {
        let count = match status {
            DiffStatus::Same => &mut self.same,
            DiffStatus::SameValues => &mut self.same_values,
            DiffStatus::Changed => &mut self.changed,
            DiffStatus::OnlyHere => &mut self.only_here,
            DiffStatus::OnlyThere => &mut self.only_there,
        };
        *count += 1;
    }
}

impl TensorDiff {
    /// The record of a pair before its values are compared.
    fn of(here: Option<&TensorInfo>, there: Option<&TensorInfo>, is_one: bool) -> TensorDiff {
        let status = match (here, there) {
            (Some(_), Some(_)) if is_one => DiffStatus::Same,
            (Some(_), Some(_)) => DiffStatus::Changed,
            (Some(_), None) => DiffStatus::OnlyHere,
            (None, _) => DiffStatus::OnlyThere,
        };
        TensorDiff {
            name: here.or(there).map(|tensor| tensor.name.clone()).unwrap_or_default(),
            status,
            relative_error: is_one.then_some(0.0),
            largest_difference: None,
            not_finite: 0,
            note: None,
            here: here.map(DiffSide::from),
            there: there.map(DiffSide::from),
        }
    }
}

/// A line of the response: `{"tensor": {...}}`, and at the end `{"total": {...}}`.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DiffRecord {
    Tensor(TensorDiff),
    Total(DiffTotal),
}

/// The records of a comparison.
pub type DiffStream = BoxStream<'static, Result<DiffRecord, Error>>;

/// The result of a request for a comparison.
pub enum DiffOutcome {
    HereUnknown,
    ThereUnknown,
    Records(DiffStream),
}

/// One of the two models of a comparison.
struct Side {
    repository: Repository,
    manifest: Manifest,
    architecture: Option<String>,
    is_gguf: bool,
    head_dim: Option<u64>,
    tensors: Vec<TensorInfo>,
}

/// A pair that owns its tensors.
struct Pair {
    here: Option<TensorInfo>,
    there: Option<TensorInfo>,
    change: (Change, Change),
    is_one: bool,
}

impl Registry {
    /// Compares two models.
    pub async fn model_diff(
        &self,
        caller: &Caller,
        here: (&Repository, &Reference),
        there: (&Repository, &Reference),
    ) -> Result<DiffOutcome, Error> {
        let Some(here) = self.diff_side(caller, here).await? else { return Ok(DiffOutcome::HereUnknown) };
        let Some(there) = self.diff_side(caller, there).await? else { return Ok(DiffOutcome::ThereUnknown) };
        let hints = hints(&here, &there);
        let pairs: Vec<Pair> = diff::pair_tensors(&here.tensors, &there.tensors, &hints)
            .into_iter()
            .map(|pair| Pair {
                is_one: pair.is_same_blob(),
                here: pair.here.cloned(),
                there: pair.there.cloned(),
                change: pair.change,
            })
            .collect();
        let weighed = diff::compare_sizes(&here.manifest, &there.manifest);
        let repositories = (here.repository, there.repository);
        let (registry, caller) = (self.clone(), caller.clone());
        let compared = stream::iter(pairs)
            .map(move |pair| {
                let (registry, caller, repositories) =
                    (registry.clone(), caller.clone(), repositories.clone());
                async move { registry.diff_pair(&caller, &repositories, pair).await }
            })
            .buffered(MAX_CONCURRENT_PAIRS);
        Ok(DiffOutcome::Records(with_total(compared.boxed(), weighed)))
    }

    /// Pairs the tensors of two models without reading their values: stored as the same bytes or not. `None` if one
    /// of the models is missing.
    pub(crate) async fn model_diff_outline(
        &self,
        caller: &Caller,
        here: (&Repository, &Reference),
        there: (&Repository, &Reference),
    ) -> Result<Option<(Vec<TensorDiff>, DiffTotal)>, Error> {
        let Some(here) = self.diff_side(caller, here).await? else { return Ok(None) };
        let Some(there) = self.diff_side(caller, there).await? else { return Ok(None) };
        let hints = hints(&here, &there);
        let mut total = DiffTotal::default();
        let SizeComparison { here: bytes_here, there: bytes_there, shared } =
            diff::compare_sizes(&here.manifest, &there.manifest);
        (total.bytes_here, total.bytes_there, total.bytes_shared) = (bytes_here, bytes_there, shared);
        let pairs = diff::pair_tensors(&here.tensors, &there.tensors, &hints);
        let records = pairs.into_iter().map(|pair| {
            let record = TensorDiff::of(pair.here, pair.there, pair.is_same_blob());
            total.count(record.status);
            record
        });
        let records = records.collect();
        Ok(Some((records, total)))
    }

    async fn diff_side(
        &self,
        caller: &Caller,
        (repository, reference): (&Repository, &Reference),
    ) -> Result<Option<Side>, Error> {
        let Some(model) = self.model_show(caller, repository, reference).await? else { return Ok(None) };
        let by_digest = Reference::Digest(model.digest);
        let tensors = self.tensor_list(caller, repository, &by_digest).await?.unwrap_or_default();
        let artifact = Artifact::read(&model.manifest, None);
        let config = match artifact.find("config.json") {
            Some(file) => self.blob_text(caller, repository, &file.layer).await?,
            None => None,
        };
        let config: Value = config.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Ok(Some(Side {
            repository: repository.clone(),
            manifest: model.manifest,
            is_gguf: model.summary.as_ref().is_some_and(|summary| summary.format == "gguf"),
            architecture: model.summary.and_then(|summary| summary.architecture),
            head_dim: head_dim(&config),
            tensors,
        }))
    }

    async fn diff_pair(
        &self,
        caller: &Caller,
        (left, right): &(Repository, Repository),
        pair: Pair,
    ) -> Result<TensorDiff, Error> {
        let mut record = TensorDiff::of(pair.here.as_ref(), pair.there.as_ref(), pair.is_one);
        let (DiffStatus::Changed, Some(here), Some(there)) = (record.status, pair.here, pair.there) else {
            return Ok(record);
        };
        let ours = self.blob_reader(caller, left, &here.digest).await?;
        let theirs = self.blob_reader(caller, right, &there.digest).await?;
        let (our_scales, their_scales) = (
            self.scales_reader(caller, left, &here).await?,
            self.scales_reader(caller, right, &there).await?,
        );
        let (Some(ours), Some(theirs)) = (ours, theirs) else {
            record.note = Some("its blob is not stored here".to_owned());
            return Ok(record);
        };
        // Decoding uses a whole processor, so the number of decoders is limited over all callers.
        let permit = self.comparing.clone().acquire_owned().await.expect("the semaphore is never closed");
        let work = tokio::task::spawn_blocking(move || {
            // Kept until the end, because the thread continues after the caller disconnects.
            let _permit = permit;
            let left = Blobs { weight: &ours, scales: our_scales.as_ref().map(|blob| blob as &dyn ReadAt) };
            let right =
                Blobs { weight: &theirs, scales: their_scales.as_ref().map(|blob| blob as &dyn ReadAt) };
            let compared = diff::compare((&here, left), (&there, right), pair.change);
            let readers = [Some(ours), Some(theirs), our_scales, their_scales];
            match readers.into_iter().flatten().find_map(BlobReader::failed) {
                Some(error) => Err(error),
                None => Ok(compared),
            }
        });
        match work.await.map_err(|_| Error::Interrupted)?? {
            Ok(difference) => {
                record.status = match difference {
                    Difference { same_bytes: true, .. } => DiffStatus::Same,
                    Difference { largest: 0.0, not_finite: 0, .. } => DiffStatus::SameValues,
                    _ => DiffStatus::Changed,
                };
                let Difference { same_bytes, relative_error, largest, not_finite } = difference;
                record.relative_error = relative_error;
                record.largest_difference = Some(largest).filter(|_| !same_bytes);
                record.not_finite = not_finite;
            }
            Err(error @ CompareError::Shapes { .. }) => record.note = Some(error.to_string()),
            Err(error) => record.note = Some(format!("cannot compare its values: {}", chain(&error))),
        }
        Ok(record)
    }
}

impl Registry {
    /// The blob with the scales of a tensor that stores them separately.
    async fn scales_reader(
        &self,
        caller: &Caller,
        repository: &Repository,
        tensor: &TensorInfo,
    ) -> Result<Option<BlobReader>, Error> {
        match &tensor.scaling {
            Some(scaling) => self.blob_reader(caller, repository, &scaling.digest).await,
            None => Ok(None),
        }
    }
}

/// What helps to pair the tensors of two models.
fn hints(here: &Side, there: &Side) -> Hints {
    Hints {
        gguf_architecture: [here, there].iter().find(|s| s.is_gguf).and_then(|s| s.architecture.clone()),
        head_dim: here.head_dim.or(there.head_dim),
    }
}

/// The records, followed by their total.
fn with_total(
    compared: BoxStream<'static, Result<TensorDiff, Error>>,
    weighed: SizeComparison,
) -> DiffStream {
    let SizeComparison { here, there, shared } = weighed;
    let total =
        DiffTotal { bytes_here: here, bytes_there: there, bytes_shared: shared, ..DiffTotal::default() };
    let records = stream::unfold(Some((compared, total)), async |state| {
        let (mut compared, mut total) = state?;
        match compared.next().await {
            Some(Ok(tensor)) => {
                total.count(tensor.status);
                Some((Ok(DiffRecord::Tensor(tensor)), Some((compared, total))))
            }
            Some(Err(error)) => Some((Err(error), None)),
            None => Some((Ok(DiffRecord::Total(total)), None)),
        }
    });
    records.boxed()
}

/// The size of an attention head, by a checkpoint's config.
fn head_dim(config: &Value) -> Option<u64> {
    let config = config.get("text_config").unwrap_or(config);
    let number = |key: &str| config.get(key).and_then(Value::as_u64).filter(|number| *number > 0);
    let quotient = || Some(number("hidden_size")? / number("num_attention_heads")?);
    number("head_dim").or_else(quotient).filter(|head_dim| *head_dim > 0)
}

impl From<&TensorInfo> for DiffSide {
    fn from(tensor: &TensorInfo) -> DiffSide {
        DiffSide {
            name: tensor.name.clone(),
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.clone(),
            size_bytes: tensor.size_bytes,
        }
    }
}
