//! Several choices in one response: each is a request to a worker. The choices of a prompt follow those of the
//! prompt before it.

use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::{Map, Value};

use super::reply::Reply;
use crate::api::inference::read_json;
use crate::api::worker_chat::Target;
use crate::api::worker_records::{Step, event_response, steps};
use crate::http::extract::InferenceBody;
use crate::http::{Failure, Json};

/// The most choices of one response.
pub(super) const MAX_CHOICES: usize = 32;

/// How many of them are generated at the same time.
const MAX_CONCURRENT: usize = 8;

/// The most bytes of the requests to workers that one request becomes, besides the first.
const MAX_COPIED_BYTES: usize = 32 << 20;

/// The number of choices of each of `prompts`.
pub(super) fn choices_of_each(n: Option<i64>, prompts: usize) -> Result<usize, Failure> {
    let n = usize::try_from(n.unwrap_or(1)).ok().filter(|n| (1..=MAX_CHOICES).contains(n));
    let n = n.ok_or_else(|| Failure::field("n", format!("must be from 1 to {MAX_CHOICES}")))?;
    if n.saturating_mul(prompts) > MAX_CHOICES {
        let reason = format!(
            "has {prompts} entries with {n} choices each; a response has at most {MAX_CHOICES} choices"
        );
        return Err(Failure::field("prompt", reason));
    }
    Ok(n)
}

/// The number of candidates of each of `prompts`, from which `n` choices are selected.
pub(super) fn candidates_of_each(best_of: Option<i64>, n: usize, prompts: usize) -> Result<usize, Failure> {
    let Some(best_of) = best_of else { return Ok(n) };
    let best_of = usize::try_from(best_of).ok().filter(|best_of| (n..=MAX_CHOICES).contains(best_of));
    let best_of = best_of.ok_or_else(|| {
        let reason = if n > 1 { format!(", as `n` is {n}") } else { String::new() };
        Failure::field("best_of", format!("must be from {n} to {MAX_CHOICES}{reason}"))
    })?;
    if best_of.saturating_mul(prompts) > MAX_CHOICES {
        let reason = format!(
            "is {best_of} for each of {prompts} prompts; a request has at most {MAX_CHOICES} candidates"
        );
        return Err(Failure::field("best_of", reason));
    }
    Ok(best_of)
}

/// The requests to workers for the choices of one prompt, which `write` writes with their options. Without a
/// seed they are the same. With one, each choice has a seed of its own. `copied_bytes` is the size of all
/// requests so far.
pub(super) fn write_requests(
    options: &Map<String, Value>,
    n: usize,
    copied_bytes: &mut usize,
    mut write: impl FnMut(Map<String, Value>) -> Vec<u8>,
) -> Result<Vec<Bytes>, Failure> {
    let mut options = options.clone();
    // Workers choose a random seed for negative numbers. Here only -1 means that, as in other servers.
    let seed = options.get("seed").and_then(Value::as_i64).filter(|seed| *seed != -1);
    let seed = seed.map(|seed| seed & i64::MAX);
    if let Some(seed) = seed {
        options.insert("seed".to_owned(), seed.into());
    }
    let first = Bytes::from(write(options.clone()));
    let copies = if seed.is_some() { n } else { 1 };
    *copied_bytes = copied_bytes.saturating_add(first.len().saturating_mul(copies));
    if *copied_bytes > first.len().saturating_add(MAX_COPIED_BYTES) {
        let reason = "is too large for a request of this size; send fewer choices at a time";
        return Err(Failure::field("n", reason));
    }
    let requests = (0..n).map(|choice| match seed {
        Some(seed) if choice > 0 => {
            let mut options = options.clone();
            let offset = i64::try_from(choice).unwrap_or_default();
            options.insert("seed".to_owned(), (seed.wrapping_add(offset) & i64::MAX).into());
            write(options).into()
        }
        _ => first.clone(),
    });
    Ok(requests.collect())
}

/// Sends the requests, each for one choice, and converts what workers respond.
pub(super) async fn respond(
    target: Target,
    requests: Vec<InferenceBody>,
    mut reply: Reply,
    is_stream: bool,
) -> Result<Response, Failure> {
    if !is_stream {
        let records = requests.into_iter().map(|request| {
            let target = target.clone();
            async move { read_json::<Value>(target.request(request).await?).await }
        });
        let records: Vec<Value> = stream::iter(records).buffered(MAX_CONCURRENT).try_collect().await?;
        return Ok(Json(reply.single_response(records)).into_response());
    }
    let mut streams = Vec::with_capacity(requests.len());
    for (choice, request) in requests.into_iter().enumerate() {
        let target = target.clone();
        // The status is that of the first request.
        let steps = match choice {
            0 => steps(target.request(request).await?),
            _ => stream::once(async move {
                match target.request(request).await {
                    Ok(response) => steps(response),
                    Err(failure) => stream::iter([Step::Failed(failure.message())]).boxed(),
                }
            })
            .flatten()
            .boxed(),
        };
        streams.push(steps.map(move |step| (choice, step)).boxed());
    }
    let steps = stream::iter(streams).flatten_unordered(MAX_CONCURRENT);
    Ok(event_response(stream::unfold(Some((steps, reply)), async |state| {
        let (mut steps, mut reply) = state?;
        Some(match steps.next().await {
            Some((choice, Step::Record(record))) => {
                let events = reply.events(choice, &record);
                (events, Some((steps, reply)))
            }
            Some((_, Step::Failed(error))) => (reply.failed_events(&error), None),
            Some((_, Step::End)) => (String::new(), Some((steps, reply))),
            None => (reply.last_events(), None),
        })
    })))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_number_of_choices_is_limited() {
        for (n, prompts, expect) in
            [(None, 1, Some(1)), (Some(32), 1, Some(32)), (Some(4), 8, Some(4)), (None, 32, Some(1))]
        {
            assert_eq!(choices_of_each(n, prompts).ok(), expect);
        }
        for (n, prompts) in [(Some(0), 1), (Some(-1), 1), (Some(33), 1), (Some(5), 8), (None, 33)] {
            assert!(choices_of_each(n, prompts).is_err(), "{n:?} {prompts}");
        }
    }

    #[test]
    fn the_number_of_candidates_is_limited() {
        for (best_of, n, prompts, expect) in [
            (None, 3, 2, Ok(3)),
            (Some(3), 3, 2, Ok(3)),
            (Some(32), 1, 1, Ok(32)),
            (Some(8), 2, 4, Ok(8)),
            (Some(2), 3, 1, Err("`best_of` must be from 3 to 32, as `n` is 3")),
            (Some(-1), 1, 1, Err("`best_of` must be from 1 to 32")),
            (Some(33), 1, 1, Err("`best_of` must be from 1 to 32")),
            (Some(9), 2, 4, Err("`best_of` is 9 for each of 4 prompts; a request has at most 32 candidates")),
        ] {
            let found = candidates_of_each(best_of, n, prompts).map_err(|failure| failure.to_string());
            assert_eq!(found, expect.map_err(str::to_owned), "{best_of:?} {n} {prompts}");
        }
    }

    #[test]
    fn each_choice_has_its_seed() {
        let seeds = |options: Value, n: usize| {
            let options = options.as_object().unwrap();
            let requests = write_requests(options, n, &mut 0, |options| json!(options).to_string().into());
            let requests = requests.unwrap().into_iter();
            requests.map(|json| serde_json::from_slice::<Value>(&json).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(
            seeds(json!({"seed": 7}), 3),
            [json!({"seed": 7}), json!({"seed": 8}), json!({"seed": 9})]
        );
        assert_eq!(seeds(json!({"seed": -1}), 2), [json!({"seed": -1}), json!({"seed": -1})]);
        assert_eq!(seeds(json!({"seed": i64::MIN}), 2), [json!({"seed": 0}), json!({"seed": 1})]);
        assert_eq!(seeds(json!({"seed": i64::MAX}), 2), [json!({"seed": i64::MAX}), json!({"seed": 0})]);
        assert_eq!(seeds(json!({}), 2), [json!({}), json!({})]);
        let large = json!({"seed": 1}).as_object().unwrap().clone();
        let written = write_requests(&large, 32, &mut 0, |_| vec![0; 2 << 20]);
        assert!(written.unwrap_err().to_string().starts_with("`n` is too large"));
    }
}
