//! Recognises the requests of one conversation by how their prompts begin. A worker keeps the computed start
//! of recent prompts, so the next turn of a conversation is faster on the worker of the previous one.

use std::hash::{DefaultHasher, Hash, Hasher};

use serde::Deserialize;
use serde_json::value::RawValue;
use uuid::Uuid;

/// Longer bodies are not parsed: their first bytes stand for the start of the conversation, which clients
/// repeat unchanged. A conversation may thus move once, when it becomes longer.
const MAX_PARSED_BYTES: usize = 32 * 1024;
const RAW_BYTES: usize = 8 * 1024;

/// How much of a prompt counts: the prompts of a completion have a common start and no turns.
const PROMPT_BYTES: usize = 1024;

/// The same for all requests of a conversation, on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConversationKey(u64);

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    system: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow)]
    messages: Option<Vec<Message<'a>>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(default)]
    role: String,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
}

impl ConversationKey {
    /// The key of a request to this path of a worker. `None` if no prompt follows from an earlier one.
    pub(super) fn read(path: &str, body: &[u8]) -> Option<ConversationKey> {
        if !matches!(path, "/api/generate" | "/api/chat") {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        if body.len() > MAX_PARSED_BYTES {
            body[..RAW_BYTES].hash(&mut hasher);
            return Some(ConversationKey(hasher.finish()));
        }
        // A body of another form is refused by the worker.
        let Body { system, prompt, messages } = serde_json::from_slice(body).ok()?;
        let text = |value: Option<&RawValue>| value.map_or("", RawValue::get).to_owned();
        text(system).hash(&mut hasher);
        match messages {
            Some(messages) => {
                // Up to the first message of the user.
                let first = messages.iter().take_while(|message| message.role == "system").count() + 1;
                for message in messages.iter().take(first) {
                    (&message.role, text(message.content)).hash(&mut hasher);
                }
            }
            None => {
                let prompt = prompt?.get().as_bytes();
                prompt[..prompt.len().min(PROMPT_BYTES)].hash(&mut hasher);
            }
        }
        Some(ConversationKey(hasher.finish()))
    }

    /// The preference of this conversation for a worker (rendezvous hashing): if a worker leaves, only its
    /// own conversations move.
    pub(super) fn weight(self, worker: Uuid) -> u64 {
        let (high, low) = worker.as_u64_pair();
        // The finaliser of SplitMix64 (Steele, Lea, Flood 2014) spreads the bits.
        let mut bits = self.0 ^ high ^ low.rotate_left(32);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn key(path: &str, body: &Value) -> Option<ConversationKey> {
        ConversationKey::read(path, body.to_string().as_bytes())
    }

    #[test]
    fn turns_of_a_conversation_have_one_key() {
        let (system, user) =
            (json!({"role": "system", "content": "s"}), json!({"role": "user", "content": "u"}));
        let (reply, next) =
            (json!({"role": "assistant", "content": "a"}), json!({"role": "user", "content": "n"}));
        let chat = |messages: &[&Value]| key("/api/chat", &json!({"model": "m", "messages": messages}));
        let first = chat(&[&system, &user]);
        assert!(first.is_some());
        assert_eq!(chat(&[&system, &user, &reply, &next]), first);
        assert_ne!(chat(&[&system, &next]), first);
        assert_ne!(chat(&[&user]), first);
        assert_eq!(chat(&[&user, &reply, &next]), chat(&[&user]));
    }

    #[test]
    fn long_conversations_and_prompts_are_known_by_their_start() {
        let user = json!({"role": "user", "content": "x".repeat(MAX_PARSED_BYTES)});
        let chat = |more: &str| {
            key("/api/chat", &json!({"messages": [user, {"role": "assistant", "content": more}]}))
        };
        assert!(chat("").is_some());
        assert_eq!(chat("a"), chat("another"));
        let prompt = |text: String| key("/api/generate", &json!({ "prompt": text }));
        assert_eq!(prompt("x".repeat(2000)), prompt("x".repeat(3000)));
        assert_ne!(prompt("x".to_owned()), prompt("y".to_owned()));
    }

    #[test]
    fn other_requests_have_no_key() {
        for (path, body) in [
            ("/api/embed", json!({"input": "x"})),
            ("/api/generate", json!({"keep_alive": 5})),
            ("/api/chat", json!({"messages": "x"})),
            ("/api/chat", json!([])),
        ] {
            assert_eq!(key(path, &body), None, "{body}");
        }
        assert_eq!(ConversationKey::read("/api/chat", b"{"), None);
    }

    #[test]
    fn conversations_spread_evenly_and_few_move() {
        let workers: Vec<Uuid> = (0..10).map(|_| Uuid::new_v4()).collect();
        let chosen = |workers: &[Uuid], key| {
            *workers.iter().max_by_key(|worker| ConversationKey(key).weight(**worker)).unwrap()
        };
        let mut counts = std::collections::HashMap::<Uuid, u32>::new();
        for key in 0..10_000 {
            let before = chosen(&workers, key);
            *counts.entry(before).or_default() += 1;
            let after = chosen(&workers[1..], key);
            assert!(after == before || before == workers[0], "only the conversations of the first move");
        }
        assert!(counts.len() == 10 && counts.values().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
