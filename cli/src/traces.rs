//! Traces: exports the server's spans to an OpenTelemetry collector if OTEL_EXPORTER_OTLP_ENDPOINT is set.
//! The other OTEL_* variables (headers, sampler, resource attributes) have the meaning of the OpenTelemetry
//! specification.

use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    propagation::TraceContextPropagator,
    runtime::Tokio,
    trace::{BatchConfigBuilder, SdkTracerProvider, span_processor_with_async_runtime::BatchSpanProcessor},
};
use tracing::Subscriber;
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

use crate::error::{CANNOT_RUN, Failure, Outcome};

/// Maximum delay of a span until its batch is sent.
const DELAY: Duration = Duration::from_secs(2);

/// Whether traces are enabled.
pub(crate) fn is_enabled() -> bool {
    let set = |name: &str| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
    let disabled = std::env::var("OTEL_SDK_DISABLED").is_ok_and(|value| value.eq_ignore_ascii_case("true"));
    let endpoint = set("OTEL_EXPORTER_OTLP_ENDPOINT") || set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT");
    endpoint && !disabled
}

/// Creates the provider that sends spans to `endpoint`, or to the endpoint in the environment. Call it within
/// the runtime that sends them.
pub(crate) fn provider(endpoint: Option<String>) -> Outcome<SdkTracerProvider> {
    let failed = |error: &dyn std::error::Error| {
        Failure::with_source("cannot set up traces; check the OTEL_EXPORTER_OTLP_* variables", error)
            .code(CANNOT_RUN)
    };
    let client = lode_client::http_client(|| reqwest::Client::builder().timeout(Duration::from_secs(10)))
        .map_err(|error| failed(&error))?;
    let mut exporter =
        SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_http_client(client);
    if let Some(endpoint) = endpoint {
        exporter = exporter.with_endpoint(endpoint);
    }
    let exporter = exporter.build().map_err(|error| failed(&error))?;
    let mut resource = Resource::builder();
    if std::env::var_os("OTEL_SERVICE_NAME").is_none() {
        resource = resource.with_service_name("lode");
    }
    let batches = BatchConfigBuilder::default().with_scheduled_delay(DELAY).build();
    let processor = BatchSpanProcessor::builder(exporter, Tokio).with_batch_config(batches).build();
    opentelemetry::global::set_text_map_propagator(TraceContextPropagator::new());
    lode_registry::enable_traces();
    Ok(SdkTracerProvider::builder().with_resource(resource.build()).with_span_processor(processor).build())
}

/// The layer that passes Lode's own spans to `provider`: one per request, with a child for each query and
/// each blob store operation.
pub(crate) fn layer<S>(provider: &SdkTracerProvider) -> impl Layer<S> + use<S>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
{
    let ours = filter_fn(|metadata| metadata.is_span() && metadata.target().starts_with("lode"));
    tracing_opentelemetry::layer().with_tracer(provider.tracer("lode")).with_filter(ours)
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        sync::mpsc,
    };
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// A collector that accepts everything and forwards the received bytes.
    async fn collector() -> (String, mpsc::UnboundedReceiver<Vec<u8>>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 64 * 1024];
                    while let Ok(read @ 1..) = stream.read(&mut buffer).await {
                        let _test_is_over = sender.send(buffer[..read].to_vec());
                        // This may send several responses per request, which the exporter tolerates.
                        let _left = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                    }
                });
            }
        });
        (endpoint, receiver)
    }

    /// A worker that completes each request at once; forwards the head of each request.
    async fn worker() -> (String, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut head = Vec::new();
                while !head.ends_with(b"}") {
                    head.push(stream.read_u8().await.unwrap());
                }
                let _test_is_over = sender.send(String::from_utf8(head).unwrap());
                let response =
                    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/x-ndjson\r\n\r\n{\"done\":true}\n";
                stream.write_all(response).await.unwrap();
            }
        });
        (address, receiver)
    }

    #[tokio::test]
    async fn a_request_is_a_span_in_the_client_s_trace_with_its_queries_below() {
        // Dropping the provider waits for its last spans, so the exporter and the collector run on other
        // threads.
        let sending =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (endpoint, mut received) = sending.spawn(collector()).await.unwrap();
        let provider = {
            let _inside = sending.enter();
            provider(Some(endpoint)).unwrap()
        };
        let subscriber = tracing_subscriber::registry().with(layer(&provider));
        // With a single subscriber in the process, a thread without it that reaches a span first disables
        // that span for all threads. A second subscriber prevents that.
        let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
        let _on_this_thread = tracing::subscriber::set_default(subscriber);

        let folder = tempfile::tempdir().unwrap();
        let config =
            lode_registry::Config { data: folder.path().to_owned(), ..lode_registry::Config::default() };
        let registry = lode_registry::open(config).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(lode_registry::serve(registry, listener, None, std::future::pending()));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        let trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
        let request = || {
            client
                .get(format!("{base}/v2/team/mini/manifests/none"))
                .header("traceparent", format!("00-{trace_id}-00f067aa0ba902b7-01"))
        };
        assert_eq!(request().send().await.unwrap().status(), 404);

        // The worker receives the trace id of the request, with a new parent span.
        let (worker, mut heard) = worker().await;
        let announced =
            serde_json::json!({ "advertise": worker, "devices": [{ "kind": "cpu", "free_bytes": 1 }] });
        let announced = client.post(format!("{base}/lode/v1/workers")).body(announced.to_string());
        assert_eq!(announced.send().await.unwrap().status(), 201);
        let config = lode_model::digest::Digest::sha256(b"{}");
        let blob = client.post(format!("{base}/v2/team/mini/blobs/uploads/?digest={config}")).body("{}");
        assert_eq!(blob.send().await.unwrap().status(), 201);
        let kind = "application/vnd.oci.image.manifest.v1+json";
        let manifest = serde_json::json!({ "schemaVersion": 2, "mediaType": kind, "layers": [],
            "config": { "mediaType": "application/json", "digest": config, "size": 2 } });
        let put = client.put(format!("{base}/v2/team/mini/manifests/v1")).header("content-type", kind);
        assert_eq!(put.body(manifest.to_string()).send().await.unwrap().status(), 201);
        let generate = client
            .post(format!("{base}/lode/v1/generate"))
            .header("traceparent", format!("00-{trace_id}-00f067aa0ba902b7-01"))
            .body(r#"{"model":"team/mini:v1","prompt":"hello"}"#);
        assert_eq!(generate.send().await.unwrap().status(), 200);
        let head = heard.recv().await.unwrap();
        assert!(head.contains(&format!("traceparent: 00-{trace_id}-")), "{head}");
        assert!(!head.contains("00f067aa0ba902b7"), "{head}");

        let trace_bytes: Vec<u8> =
            (0..32).step_by(2).map(|at| u8::from_str_radix(&trace_id[at..at + 2], 16).unwrap()).collect();
        let name = b"GET /v2/{name}/manifests/{reference}";
        let wanted: [&[u8]; 4] = [&trace_bytes, name, b"manifest_find", b"service.name"];
        let mut all = Vec::new();
        let complete = async {
            while !wanted.iter().all(|part| all.windows(part.len()).any(|window| window == *part)) {
                tokio::select! {
                    part = received.recv() => all.extend(part.unwrap()),
                    // The exporter drops spans that it fails to send in time, for example on a busy machine.
                    () = tokio::time::sleep(Duration::from_secs(15)) => {
                        request().send().await.unwrap();
                    }
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(120), complete).await.expect("spans arrive");
        drop(provider);
        sending.shutdown_background();
    }
}
