//! The memory of a GPU, as far as models of this worker may use it.

use std::sync::{Mutex, PoisonError};

use futures::future::BoxFuture;
use lode_kernels::cuda::DeviceMemory;

use super::child::Prober;
use super::probe::ProbeRequest;
use super::select::Card;

/// Measures the memory of a GPU; `None` if that fails.
type Measure = Box<dyn Fn() -> BoxFuture<'static, Option<DeviceMemory>> + Send + Sync>;

/// The memory of a GPU when no model of this worker is on it. It is measured before the first model is
/// loaded; a measurement with models on the GPU would not tell their memory from that of other programs.
pub struct CardMemory {
    name: String,
    idle: Mutex<DeviceMemory>,
    measure: Measure,
}

impl CardMemory {
    /// The memory of a card, which probes measure again.
    pub fn of_card(card: Card, prober: Prober) -> Self {
        let request = ProbeRequest { device: Some(card.ordinal), ..ProbeRequest::default() };
        let measure = move || {
            let (prober, request) = (prober.clone(), request.clone());
            let measured: BoxFuture<'static, _> = Box::pin(async move {
                match prober.run(&request).await {
                    Ok(report) => {
                        let device = report.devices.into_iter().next()?;
                        let free_bytes = device.free_bytes?;
                        Some(DeviceMemory { total_bytes: device.total_bytes, free_bytes })
                    }
                    Err(error) => {
                        tracing::warn!(error, "failed to measure the memory of the GPU");
                        None
                    }
                }
            });
            measured
        };
        Self::new(card.name, card.memory, Box::new(measure))
    }

    /// As [`of_card`](Self::of_card), with another way to measure.
    pub fn new(name: String, memory: DeviceMemory, measure: Measure) -> Self {
        Self { name, idle: Mutex::new(memory), measure }
    }

    /// `cuda:0 NVIDIA H100 PCIe`
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The last measurement.
    pub fn idle(&self) -> DeviceMemory {
        *self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Measures again. The result counts only if `is_idle` still holds afterwards: no model is on the GPU.
    pub async fn measure(&self, is_idle: impl Fn() -> bool) {
        if let Some(memory) = (self.measure)().await
            && is_idle()
        {
            *self.idle.lock().unwrap_or_else(PoisonError::into_inner) = memory;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::child::tests::script;
    use super::*;

    #[tokio::test]
    async fn memory_is_measured_only_while_no_model_is_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let report = serde_json::json!({"driver": {}, "nvrtc": {}, "error": null, "devices": [{"ordinal": 0,
            "name": "x", "compute_capability": "9.0", "total_bytes": 100, "free_bytes": 70}]});
        let prober = script(folder.path(), &format!("echo '{report}'"));
        let memory = DeviceMemory { total_bytes: 100, free_bytes: 90 };
        let card = Card { ordinal: 0, name: "cuda:0 x".into(), memory };
        let card = CardMemory::of_card(card, prober);
        card.measure(|| false).await;
        assert_eq!(card.idle().free_bytes, 90);
        card.measure(|| true).await;
        assert_eq!(card.idle().free_bytes, 70);
    }

    #[tokio::test]
    async fn a_failed_measurement_keeps_the_last_one() {
        let folder = tempfile::tempdir().unwrap();
        let memory = DeviceMemory { total_bytes: 100, free_bytes: 90 };
        let card = Card { ordinal: 0, name: "cuda:0 x".into(), memory };
        let card = CardMemory::of_card(card, script(folder.path(), "exit 1"));
        card.measure(|| true).await;
        assert_eq!(card.idle(), memory);
    }
}
