//! Samples the next id from a row of logits, and computes log-probabilities. The result is a function of the
//! options, the logits and the ids so far: a seed gives the same result on every machine.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

/// The sampling options of a request, with ollama's names and defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SamplerOptions {
    /// 0 always selects the most likely id.
    pub temperature: f32,
    /// Keep the k most likely ids; 0 or less keeps all.
    pub top_k: i32,
    /// Keep the most likely ids until their probabilities sum to this.
    pub top_p: f32,
    /// Keep ids at least this likely compared with the most likely one.
    pub min_p: f32,
    /// Locally typical sampling: keep the ids whose surprisal is closest to the entropy, until they sum to
    /// this.
    pub typical_p: f32,
    /// Divides positive and multiplies negative logits of recent ids.
    pub repeat_penalty: f32,
    /// Subtracted once from the logit of a recent id.
    pub presence_penalty: f32,
    /// Subtracted from the logit of a recent id for each occurrence.
    pub frequency_penalty: f32,
    /// How many of the last ids are recent: 0 none, -1 the whole context.
    pub repeat_last_n: i32,
    /// Negative: a random seed.
    pub seed: i64,
    /// Added to the logits of these ids.
    pub logit_bias: Vec<(u32, f32)>,
}

impl Default for SamplerOptions {
    fn default() -> Self {
        SamplerOptions {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.9,
            min_p: 0.0,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            repeat_last_n: 64,
            seed: -1,
            logit_bias: Vec::new(),
        }
    }
}

/// A row of logits has no finite value.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("the model computed no finite logit for the next token")]
pub struct NonFiniteLogits;

/// The sampler of one sequence: its options, its random numbers, and the recent ids for penalties.
#[derive(Debug)]
pub struct Sampler {
    options: SamplerOptions,
    random: SplitMix64,
    recent: VecDeque<u32>,
    recent_cap: usize,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Candidate {
    id: u32,
    logit: f32,
}

impl Candidate {
    /// Orders the more likely first.
    fn order(&self, other: &Candidate) -> std::cmp::Ordering {
        other.logit.total_cmp(&self.logit).then(self.id.cmp(&other.id))
    }
}

impl Sampler {
    /// `context_length` is the value for `repeat_last_n` = -1.
    pub fn new(options: SamplerOptions, context_length: usize) -> Sampler {
        let recent_cap = match options.repeat_last_n {
            n if n < 0 => context_length,
            n => (n as usize).min(context_length),
        };
        let seed = u64::try_from(options.seed).unwrap_or_else(|_| random_seed());
        Sampler { options, random: SplitMix64(seed), recent: VecDeque::new(), recent_cap }
    }

    /// Records an id of the prompt or of the response for the penalties.
    pub fn accept(&mut self, id: u32) {
        if self.recent_cap == 0 || !self.has_penalties() {
            return;
        }
        if self.recent.len() == self.recent_cap {
            self.recent.pop_front();
        }
        self.recent.push_back(id);
    }

    /// Samples the next id. `logits` has one entry per id of the vocabulary; NaN counts as minus infinity.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, NonFiniteLogits> {
        let penalised;
        let has_penalties = self.has_penalties() && !self.recent.is_empty();
        let logits = if has_penalties || !self.options.logit_bias.is_empty() {
            penalised = self.penalise(logits);
            &penalised
        } else {
            logits
        };
        let best = argmax(logits).ok_or(NonFiniteLogits)?;
        if self.options.temperature <= 0.0 || self.options.temperature.is_nan() || self.options.top_k == 1 {
            return Ok(best);
        }
        let mut candidates = self.top_k(logits);
        self.typical(&mut candidates);
        self.top_p(&mut candidates);
        self.min_p(&mut candidates);
        Ok(self.draw(&candidates))
    }

    fn has_penalties(&self) -> bool {
        let options = &self.options;
        options.repeat_penalty != 1.0 || options.presence_penalty != 0.0 || options.frequency_penalty != 0.0
    }

    fn penalise(&self, logits: &[f32]) -> Vec<f32> {
        let options = &self.options;
        let mut seen: Vec<u32> = self.recent.iter().copied().collect();
        seen.sort_unstable();
        let mut logits = logits.to_vec();
        for run in seen.chunk_by(|a, b| a == b) {
            let Some(logit) = logits.get_mut(run[0] as usize) else { continue };
            if options.repeat_penalty > 0.0 {
                *logit = if *logit > 0.0 {
                    *logit / options.repeat_penalty
                } else {
                    *logit * options.repeat_penalty
                };
            }
            *logit -= options.presence_penalty + options.frequency_penalty * run.len() as f32;
        }
        for &(id, bias) in &options.logit_bias {
            if let Some(logit) = logits.get_mut(id as usize) {
                *logit += bias;
            }
        }
        logits
    }

    /// Finite candidates, most likely first. Equal logits are in order of id, so that the result is
    /// deterministic.
    fn top_k(&self, logits: &[f32]) -> Vec<Candidate> {
        let k = usize::try_from(self.options.top_k).unwrap_or(0);
        let k = if k == 0 { logits.len() } else { k };
        let most = k.saturating_mul(4).max(256);
        let mut candidates: Vec<Candidate> = Vec::with_capacity(most.min(logits.len()));
        // Skip ids below the k-th best so far: nearly all ids of a large vocabulary.
        let mut least = f32::NEG_INFINITY;
        for (at, run) in logits.chunks(CHUNK_LEN).enumerate() {
            if !run.iter().fold(false, |any, &logit| any | (logit >= least)) {
                continue;
            }
            for (id, &logit) in (at * CHUNK_LEN..).zip(run) {
                if logit.is_finite() && logit >= least {
                    candidates.push(Candidate { id: id as u32, logit });
                }
            }
            if candidates.len() >= most {
                keep_best(&mut candidates, k);
                least = candidates.last().map_or(least, |candidate| candidate.logit);
            }
        }
        keep_best(&mut candidates, k);
        candidates.sort_unstable_by(Candidate::order);
        candidates
    }

    fn typical(&self, candidates: &mut Vec<Candidate>) {
        let p = f64::from(self.options.typical_p);
        if !(p > 0.0 && p < 1.0) {
            return;
        }
        let probabilities = softmax(candidates, 1.0);
        let entropy: f64 = probabilities.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum();
        let mut by_surprise: Vec<(f64, usize)> =
            probabilities.iter().enumerate().map(|(at, p)| ((-p.ln() - entropy).abs(), at)).collect();
        by_surprise.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut sum = 0.0;
        let mut kept = Vec::new();
        for (_, at) in by_surprise {
            kept.push(at);
            sum += probabilities[at];
            if sum >= p {
                break;
            }
        }
        kept.sort_unstable();
        *candidates = kept.into_iter().map(|at| candidates[at]).collect();
    }

    fn top_p(&self, candidates: &mut Vec<Candidate>) {
        let p = f64::from(self.options.top_p);
        if p.is_nan() || p >= 1.0 {
            return;
        }
        let mut sum = 0.0;
        let keep = softmax(candidates, 1.0)
            .iter()
            .position(|probability| {
                sum += probability;
                sum >= p
            })
            .map_or(candidates.len(), |at| at + 1);
        candidates.truncate(keep);
    }

    fn min_p(&self, candidates: &mut Vec<Candidate>) {
        let p = self.options.min_p;
        if p > 0.0
            && let Some(best) = candidates.first().map(|best| best.logit)
        {
            let least = best + p.min(1.0).ln();
            candidates.retain(|candidate| candidate.logit >= least);
        }
    }

    fn draw(&mut self, candidates: &[Candidate]) -> u32 {
        let probabilities = softmax(candidates, f64::from(self.options.temperature));
        let mut left = self.random.unit();
        for (candidate, probability) in candidates.iter().zip(&probabilities) {
            left -= probability;
            if left < 0.0 {
                return candidate.id;
            }
        }
        // Rounding can leave the draw beyond the last one.
        candidates.last().map_or(0, |candidate| candidate.id)
    }
}

/// Number of logits per chunk: enough for the compiler to vectorise the loop.
const CHUNK_LEN: usize = 32;

/// The id of the largest logit, the lowest id of several; `None` if no logit is finite.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let finite = |logit: f32| if logit.abs() < f32::INFINITY { logit } else { f32::NEG_INFINITY };
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (runs, rest) = logits.as_chunks::<CHUNK_LEN>();
    let mut most = [f32::NEG_INFINITY; CHUNK_LEN];
    for run in runs {
        for (most, &logit) in most.iter_mut().zip(run) {
            *most = larger(*most, finite(logit));
        }
    }
    let most = most.into_iter().chain(rest.iter().map(|&logit| finite(logit)));
    let most = most.fold(f32::NEG_INFINITY, larger);
    let best = logits.iter().position(|&logit| logit == most).filter(|_| most.is_finite());
    best.map(|id| id as u32)
}

/// Keeps the k most likely candidates. The last is the least likely; the others are in any order.
fn keep_best(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, Candidate::order);
        candidates.truncate(k);
    }
}

/// Log-softmax over a whole row of unmodified logits; entries are computed on request.
#[derive(Debug, Clone, Copy)]
pub struct LogSoftmax<'a> {
    logits: &'a [f32],
    log_sum: f64,
}

impl<'a> LogSoftmax<'a> {
    /// One pass over the row, summed in double precision.
    pub fn new(logits: &'a [f32]) -> LogSoftmax<'a> {
        let max = logits.iter().copied().filter(|logit| logit.is_finite()).fold(f32::NEG_INFINITY, f32::max);
        let max = f64::from(max);
        let sum: f64 = logits
            .iter()
            .filter(|logit| logit.is_finite())
            .map(|&logit| (f64::from(logit) - max).exp())
            .sum();
        LogSoftmax { logits, log_sum: max + sum.ln() }
    }

    /// The natural logarithm of the probability of `id`; minus infinity becomes the lowest finite number,
    /// because JSON has no infinity.
    pub fn of(&self, id: u32) -> f32 {
        let value =
            self.logits.get(id as usize).map_or(f64::NEG_INFINITY, |&logit| f64::from(logit) - self.log_sum);
        if value.is_finite() { value as f32 } else { f32::MIN }
    }

    /// The `n` most likely ids, most likely first.
    pub fn top(&self, n: usize) -> Vec<(u32, f32)> {
        if n == 0 {
            return Vec::new();
        }
        // A small sorted list is faster than sorting the row: n is at most 20.
        let mut top: Vec<(u32, f32)> = Vec::with_capacity(n + 1);
        for (id, &logit) in self.logits.iter().enumerate() {
            if logit.is_finite() && (top.len() < n || top.last().is_some_and(|&(_, least)| logit > least)) {
                let at = top.partition_point(|&(_, other)| other >= logit);
                top.insert(at, (id as u32, logit));
                top.truncate(n);
            }
        }
        top.into_iter().map(|(id, _)| (id, self.of(id))).collect()
    }
}

fn softmax(candidates: &[Candidate], temperature: f64) -> Vec<f64> {
    let max = candidates.iter().map(|candidate| candidate.logit).fold(f32::NEG_INFINITY, f32::max);
    let mut weights: Vec<f64> = candidates
        .iter()
        .map(|candidate| ((f64::from(candidate.logit) - f64::from(max)) / temperature).exp())
        .collect();
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    weights
}

fn random_seed() -> u64 {
    getrandom::u64().unwrap_or_else(|_| {
        // Without an entropy source, the clock distinguishes requests.
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64)
    })
}

/// SplitMix64 (Steele, Lea, Flood 2014): small, good enough for sampling, and stable across platforms and
/// versions.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in [0, 1), 53 bits.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(set: impl FnOnce(&mut SamplerOptions)) -> SamplerOptions {
        let mut options = SamplerOptions {
            temperature: 1.0,
            top_k: 0,
            top_p: 1.0,
            repeat_penalty: 1.0,
            seed: 1,
            ..SamplerOptions::default()
        };
        set(&mut options);
        options
    }

    /// The ids that occur in 4,000 draws.
    fn support(options: SamplerOptions, logits: &[f32]) -> Vec<u32> {
        let mut sampler = Sampler::new(options, 128);
        let mut ids: Vec<u32> = (0..4000).map(|_| sampler.sample(logits).unwrap()).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, f32::NEG_INFINITY, 1.5];

    #[test]
    fn biases_change_logits() {
        let biased = |biases: &[(u32, f32)], temperature: f32| {
            let options = options(|options| {
                (options.logit_bias, options.temperature) = (biases.to_vec(), temperature);
            });
            support(options, &LOGITS)
        };
        assert_eq!(biased(&[(2, 100.0)], 1.0), [2]);
        assert_eq!(biased(&[(1, -100.0)], 0.0), [4]);
        assert_eq!(biased(&[(1, -100.0), (4, -100.0)], 1.0), [0, 2]);
        // An id that a constraint excludes stays excluded, and one outside of the vocabulary has no effect.
        assert_eq!(biased(&[(3, 100.0), (99, 100.0)], 0.0), [1]);
    }

    #[test]
    fn truncation_table() {
        // softmax of LOGITS: 0.064, 0.474, 0.174, 0, 0.287
        let check = |set: fn(&mut SamplerOptions), expect: &[u32]| {
            assert_eq!(support(options(set), &LOGITS), expect);
        };
        check(|_| {}, &[0, 1, 2, 4]);
        check(|o| o.temperature = 0.0, &[1]);
        check(|o| o.top_k = 1, &[1]);
        check(|o| o.top_k = 2, &[1, 4]);
        check(|o| o.top_k = 99, &[0, 1, 2, 4]);
        check(|o| o.top_p = 0.0, &[1]);
        check(|o| o.top_p = 0.4, &[1]);
        check(|o| o.top_p = 0.5, &[1, 4]);
        check(|o| o.top_p = 0.8, &[1, 2, 4]);
        check(|o| o.min_p = 1.0, &[1]);
        check(|o| o.min_p = 0.5, &[1, 4]);
        check(|o| o.min_p = 0.3, &[1, 2, 4]);
        check(|o| o.typical_p = 0.25, &[4]);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let mut sampler = Sampler::new(options(|_| {}), 128);
        let n = 40_000;
        let ones = (0..n).filter(|_| sampler.sample(&[0.0, 1.0]).unwrap() == 1).count();
        assert!((ones as f64 / f64::from(n) - 0.7311).abs() < 0.01, "{ones}");
    }

    #[test]
    fn one_seed_one_result() {
        let draw = |seed: i64| -> Vec<u32> {
            let mut sampler = Sampler::new(options(|o| o.seed = seed), 128);
            (0..32).map(|_| sampler.sample(&LOGITS).unwrap()).collect()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert_eq!(SplitMix64(0).next(), 0xE220_A839_7B1D_CDAF, "the published first output for seed 0");
    }

    #[test]
    fn penalties() {
        let check = |set: fn(&mut SamplerOptions), seen: &[u32], logits: &[f32], expect: u32| {
            let mut sampler = Sampler::new(options(|o| o.temperature = 0.0).clone(), 128);
            set(&mut sampler.options);
            sampler.recent_cap = match sampler.options.repeat_last_n {
                -1 => 128,
                n => n as usize,
            };
            seen.iter().for_each(|&id| sampler.accept(id));
            assert_eq!(sampler.sample(logits).unwrap(), expect);
        };
        check(|o| o.repeat_penalty = 1.5, &[0], &[1.4, 1.0], 1);
        check(|o| o.repeat_penalty = 1.3, &[0], &[1.4, 1.0], 0);
        check(|o| o.repeat_penalty = 2.0, &[0], &[-1.0, -1.5], 1);
        check(|o| o.presence_penalty = 0.5, &[0, 0, 0], &[1.4, 1.0], 1);
        check(|o| o.presence_penalty = 0.3, &[0, 0, 0], &[1.4, 1.0], 0);
        check(|o| o.frequency_penalty = 0.15, &[0, 0, 0], &[1.4, 1.0], 1);
        check(|o| o.frequency_penalty = 0.15, &[0, 0], &[1.4, 1.0], 0);
        let windowed = |o: &mut SamplerOptions| (o.presence_penalty, o.repeat_last_n) = (9.0, 1);
        check(windowed, &[0, 1], &[1.0, 2.0], 0);
        check(|o| (o.presence_penalty, o.repeat_last_n) = (9.0, 0), &[1], &[1.0, 2.0], 1);
        check(|o| (o.presence_penalty, o.repeat_last_n) = (9.0, -1), &[1, 0, 0], &[1.0, 2.0, -3.0], 2);
        check(|o| o.presence_penalty = 1.0, &[99], &[1.0, 2.0], 1);
    }

    #[test]
    fn the_best_of_a_long_row_are_those_of_a_sorted_one() {
        let mut random = SplitMix64(5);
        for round in 0..60 {
            // Few values for many ids: equal values, zeros of both signs, infinities and NaN.
            let number = |random: &mut SplitMix64| match random.next() % 50 {
                0 => f32::NAN,
                1 => f32::NEG_INFINITY,
                2 => f32::INFINITY,
                3 => -0.0,
                n => {
                    (n % 17) as f32 * if n > 25 { 0.5 } else { -0.25 }
                        + (round % 3) as f32 * random.unit() as f32
                }
            };
            let logits: Vec<f32> = (0..700 * (round % 5) + round).map(|_| number(&mut random)).collect();
            let mut all: Vec<Candidate> =
                (0..).zip(&logits).map(|(id, &logit)| Candidate { id, logit }).collect();
            all.retain(|candidate| candidate.logit.is_finite());
            all.sort_by(Candidate::order);
            for k in [0, 1, 2, 40, 100, 5000] {
                let sampler = Sampler::new(options(|o| o.top_k = k), 128);
                let kept = if k == 0 { all.len() } else { all.len().min(k as usize) };
                assert_eq!(sampler.top_k(&logits), all[..kept], "{round} {k}");
            }
            let most = all.first().map(|best| best.logit);
            let best = most.and_then(|most| logits.iter().position(|logit| *logit == most));
            assert_eq!(argmax(&logits), best.map(|id| id as u32), "{round}");
        }
    }

    #[test]
    fn bad_numbers() {
        let mut sampler = Sampler::new(options(|_| {}), 8);
        assert_eq!(sampler.sample(&[f32::NAN, f32::NEG_INFINITY]), Err(NonFiniteLogits));
        assert_eq!(sampler.sample(&[]), Err(NonFiniteLogits));
        assert_eq!(sampler.sample(&[f32::NAN, 1.0]), Ok(1));
        let mut wild =
            Sampler::new(options(|o| (o.temperature, o.top_p, o.min_p) = (f32::NAN, f32::NAN, f32::NAN)), 8);
        assert_eq!(wild.sample(&LOGITS), Ok(1));
    }

    #[test]
    fn log_probabilities() {
        let row = LogSoftmax::new(&LOGITS);
        let sum: f64 = (0..5).map(|id| f64::from(row.of(id)).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6);
        assert!((row.of(1) - -0.7466).abs() < 1e-3, "{}", row.of(1));
        assert_eq!(row.of(3), f32::MIN);
        assert_eq!(row.top(2).iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 4]);
        assert_eq!(row.top(20).len(), 4);
        assert!(row.top(0).is_empty());
        let equal = LogSoftmax::new(&[1.0, 1.0, 1.0]);
        assert_eq!(equal.top(2).iter().map(|&(id, _)| id).collect::<Vec<_>>(), [0, 1]);
    }
}
