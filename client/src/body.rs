//! Reads request bodies within limits: a limit per body, and a memory budget for all bodies. Used by the
//! registry, the worker and the runner.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes per semaphore permit.
const UNIT_BYTES: usize = 1024;

/// Bodies up to this size may use the whole budget. An eighth of it is reserved for them, so that a few large
/// bodies do not block ordinary requests.
const SMALL_BYTES: usize = 64 * 1024;

/// Initial buffer size for a body that arrives in several pieces.
const FIRST_BUFFER_BYTES: usize = 64 * 1024;

/// A memory budget for request bodies.
#[derive(Clone, Debug)]
pub struct BodyBudget {
    permits: Arc<Semaphore>,
    units: usize,
}

/// An error while reading a request body.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the request body has more than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    /// The body exceeds the limit even of an idle server.
    #[error(
        "the request body needs about {bytes} bytes of memory once parsed, more than the limit of {limit_bytes}"
    )]
    TooCostly { bytes: usize, limit_bytes: usize },
    /// Transient: the same body may be accepted later.
    #[error("the memory budget for request bodies is used up; try again")]
    BudgetExhausted,
    #[error("the request body was interrupted")]
    Interrupted(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl BodyBudget {
    pub fn new(bytes: u64) -> BodyBudget {
        let units = usize::try_from(bytes / UNIT_BYTES as u64).unwrap_or(usize::MAX);
        let units = units.clamp(1, Semaphore::MAX_PERMITS.min(u32::MAX as usize));
        BodyBudget { permits: Arc::new(Semaphore::new(units)), units }
    }

    /// Returns an empty charge, to be increased while a body arrives.
    pub fn charge(&self) -> Charge {
        Charge { budget: self.clone(), permit: None }
    }

    /// Units that large bodies leave for small ones.
    fn reserve(&self) -> usize {
        self.units / 8
    }
}

/// A share of a budget; released on drop.
#[derive(Debug)]
pub struct Charge {
    budget: BodyBudget,
    permit: Option<OwnedSemaphorePermit>,
}

impl Charge {
    /// Returns an empty charge to the same budget.
    pub fn another(&self) -> Charge {
        self.budget.charge()
    }

    /// Changes this charge to `bytes`. Fails instead of waiting.
    pub fn set(&mut self, bytes: usize) -> Result<(), BodyError> {
        let units = bytes.div_ceil(UNIT_BYTES);
        let held = self.permit.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Some(more) = units.checked_sub(held).filter(|more| *more > 0) else {
            if let Some(permit) = &mut self.permit {
                drop(permit.split(held - units));
            }
            return Ok(());
        };
        let reserve = if bytes > SMALL_BYTES { self.budget.reserve() } else { 0 };
        let limit = self.budget.units - reserve;
        if units > limit {
            return Err(BodyError::TooCostly { bytes, limit_bytes: limit.saturating_mul(UNIT_BYTES) });
        }
        if self.budget.permits.available_permits() < more + reserve {
            return Err(BodyError::BudgetExhausted);
        }
        let more = u32::try_from(more).map_err(|_| BodyError::BudgetExhausted)?;
        let permit = self.budget.permits.clone().try_acquire_many_owned(more);
        let permit = permit.map_err(|_| BodyError::BudgetExhausted)?;
        match &mut self.permit {
            Some(held) => held.merge(permit),
            none => *none = Some(permit),
        }
        Ok(())
    }
}

/// Reads a body of at most `limit_bytes` and charges each byte as it arrives. A body whose declared size
/// exceeds the limit is not read.
pub async fn read_body<B>(body: B, limit_bytes: usize, charge: &mut Charge) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let too_large = || BodyError::TooLarge { limit_bytes };
    let size = body.size_hint();
    let declared = size.exact().and_then(|size| usize::try_from(size).ok());
    if size.lower() > limit_bytes as u64 {
        return Err(too_large());
    }
    let mut body = std::pin::pin!(body);
    let mut first = Bytes::new();
    let mut buffer = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| BodyError::Interrupted(error.into()))?;
        let Ok(data) = frame.into_data() else { continue };
        let len = first.len() + buffer.len() + data.len();
        if len > limit_bytes {
            return Err(too_large());
        }
        charge.set(len)?;
        if len == data.len() {
            // Most bodies are one piece, which is used without a copy.
            first = data;
            continue;
        }
        if buffer.capacity() < len {
            // Grow exponentially, but not beyond the declared size.
            let target = (2 * len).max(FIRST_BUFFER_BYTES).min(declared.unwrap_or(usize::MAX)).max(len);
            buffer.reserve(target - buffer.len());
        }
        buffer.extend_from_slice(&std::mem::take(&mut first));
        buffer.extend_from_slice(&data);
    }
    Ok(if buffer.is_empty() { first } else { buffer.freeze() })
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    type Piece = Result<Frame<Bytes>, std::io::Error>;

    fn pieces(sizes: &[usize]) -> impl Body<Data = Bytes, Error = std::io::Error> + use<> {
        let pieces: Vec<Piece> =
            sizes.iter().map(|size| Ok(Frame::data(Bytes::from(vec![b'x'; *size])))).collect();
        StreamBody::new(stream::iter(pieces))
    }

    async fn read(budget: &BodyBudget, limit: usize, sizes: &[usize]) -> Result<(usize, Charge), BodyError> {
        let mut charge = budget.charge();
        let bytes = read_body(pieces(sizes), limit, &mut charge).await?;
        Ok((bytes.len(), charge))
    }

    #[tokio::test]
    async fn bodies_are_limited_one_by_one() {
        let budget = BodyBudget::new(1 << 20);
        for sizes in [&[][..], &[0], &[1], &[1000], &[400, 600], &[1; 1000]] {
            assert_eq!(read(&budget, 1000, sizes).await.unwrap().0, sizes.iter().sum::<usize>());
        }
        for sizes in [&[1001][..], &[600, 401], &[1; 1001]] {
            let error = read(&budget, 1000, sizes).await.unwrap_err();
            assert!(matches!(error, BodyError::TooLarge { limit_bytes: 1000 }), "{error}");
        }
        // The declared size is checked before the body is read.
        let error =
            read_body(Full::new(Bytes::from(vec![0; 11])), 10, &mut budget.charge()).await.unwrap_err();
        assert!(matches!(error, BodyError::TooLarge { limit_bytes: 10 }), "{error}");
    }

    #[tokio::test]
    async fn bodies_share_a_budget() {
        let (budget, limit) = (BodyBudget::new(1 << 20), 1 << 20);
        let (_, first) = read(&budget, limit, &[400 << 10]).await.unwrap();
        let (_, second) = read(&budget, limit, &[400 << 10]).await.unwrap();
        let error = read(&budget, limit, &[200 << 10]).await.unwrap_err();
        assert!(matches!(error, BodyError::BudgetExhausted), "{error}");
        // The rest of the budget is reserved for small bodies.
        let (_, small) = read(&budget, limit, &[64 << 10]).await.unwrap();
        drop((first, small));
        read(&budget, limit, &[200 << 10]).await.unwrap();
        drop(second);
        assert_eq!(budget.permits.available_permits(), 1024);
        let error = read(&budget, limit, &[1 << 20]).await.unwrap_err();
        assert!(matches!(error, BodyError::TooCostly { limit_bytes: 917_504, .. }), "{error}");
    }

    #[test]
    fn a_charge_changes_with_what_it_stands_for() {
        let budget = BodyBudget::new(1 << 20);
        let free = || budget.permits.available_permits();
        let mut charge = budget.charge();
        for (bytes, units) in [(1, 1), (5000, 5), (4096, 4), (500_000, 489), (0, 0), (10, 1)] {
            charge.set(bytes).unwrap();
            assert_eq!(free(), 1024 - units, "{bytes}");
        }
        charge.set(2 << 20).unwrap_err();
        assert_eq!(free(), 1023);
        drop(charge);
        assert_eq!(free(), 1024);
    }
}
