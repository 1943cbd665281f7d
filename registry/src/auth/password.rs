//! Passwords: Argon2id hashes in the PHC format. A hash takes 19 MiB and tens of milliseconds, so the number at
//! a time is limited, and none is computed on an async thread.

use std::sync::Arc;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use lode_client::Secret;
use tokio::sync::Semaphore;

use crate::Error;

/// Shorter passwords are refused.
pub(crate) const MIN_LEN: usize = 8;
/// Longer ones, too: hashing reads all of it.
pub(crate) const MAX_LEN: usize = 1024;

/// A hash of no password. It is compared where there is no account, so that both cases take the same time.
const UNUSABLE: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// How many hashes wait for a core; more are refused.
const MAX_WAITING: usize = 256;

/// Hashes and compares passwords.
pub(crate) struct Passwords {
    /// One for each core.
    running: Arc<Semaphore>,
    /// One for each hash that waits or runs.
    admitted: Semaphore,
}

impl Default for Passwords {
    fn default() -> Passwords {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Passwords { running: Arc::new(Semaphore::new(cores)), admitted: Semaphore::new(cores + MAX_WAITING) }
    }
}

impl Passwords {
    /// The hash to store, with a new salt.
    pub(crate) async fn hash(&self, password: Secret) -> Result<Secret, Error> {
        self.run(move || {
            let hash: Result<PasswordHash, _> = Argon2::default().hash_password(password.expose().as_bytes());
            hash.map(|hash| Secret::new(hash.to_string()))
                .map_err(|error| Error::io("password hash", std::io::Error::other(error)))
        })
        .await?
    }

    /// Whether `password` is the one of this hash. Without a hash it takes as long and returns false.
    pub(crate) async fn matches(&self, hash: Option<Secret>, password: Secret) -> Result<bool, Error> {
        self.run(move || {
            if password.expose().len() > MAX_LEN {
                return false;
            }
            let stored = hash.as_ref().map_or(UNUSABLE, Secret::expose);
            let matches = Argon2::default().verify_password(password.expose().as_bytes(), stored).is_ok();
            matches && hash.is_some()
        })
        .await
    }

    async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
        let _admitted = self.admitted.try_acquire().map_err(|_| Error::Throttled { seconds: 1 })?;
        let permit = self.running.clone().acquire_owned().await.map_err(|_| Error::Interrupted)?;
        let done = tokio::task::spawn_blocking(move || {
            let result = work();
            drop(permit);
            result
        });
        done.await.map_err(|_| Error::Interrupted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn only_the_right_password_matches() {
        let passwords = Passwords::default();
        let hash = passwords.hash(Secret::new("correct horse")).await.unwrap().expose().to_owned();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        assert_ne!(passwords.hash(Secret::new("correct horse")).await.unwrap().expose(), hash, "a new salt");
        let matches = async |hash: &str, password: &str| {
            passwords.matches(Some(Secret::new(hash)), Secret::new(password)).await
        };
        assert!(matches(&hash, "correct horse").await.unwrap());
        for wrong in ["", "correct hors", "correct horse ", "Correct horse"] {
            assert!(!matches(&hash, wrong).await.unwrap(), "{wrong}");
        }
        for unusable in ["", "plain", "$argon2id$", UNUSABLE] {
            assert!(!matches(unusable, "").await.unwrap(), "{unusable}");
        }
        assert!(!passwords.matches(None, Secret::new("")).await.unwrap());
        assert!(!matches(&hash, &"x".repeat(2000)).await.unwrap());
    }

    #[tokio::test]
    async fn hashes_wait_for_a_core_and_too_many_are_refused() {
        let passwords = Arc::new(Passwords::default());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (release, released) = std::sync::mpsc::channel::<()>();
        let released = Arc::new(Mutex::new(released));
        let begin = || {
            let (passwords, running, most, released) =
                (passwords.clone(), running.clone(), most.clone(), released.clone());
            tokio::spawn(async move {
                let work = move || {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    // Fails when the sender is dropped.
                    let _ = released.lock().unwrap().recv();
                    running.fetch_sub(1, Ordering::SeqCst);
                };
                passwords.run(work).await
            })
        };
        // 1. As many run as there are cores; the others wait.
        let admitted: Vec<_> = (0..cores + MAX_WAITING).map(|_| begin()).collect();
        while running.load(Ordering::SeqCst) < cores || passwords.admitted.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        // 2. Further ones are refused at once.
        for _ in 0..3 {
            let refused = begin().await.unwrap();
            assert!(matches!(refused, Err(Error::Throttled { seconds: 1 })), "{refused:?}");
        }
        // 3. Those that wait get their turn.
        drop(release);
        for done in admitted {
            done.await.unwrap().unwrap();
        }
        assert_eq!(most.load(Ordering::SeqCst), cores);
        passwords.run(|| ()).await.unwrap();
    }
}
