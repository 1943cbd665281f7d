//! `lode worker`: runs an inference node that joins a registry, until a signal stops it.

use crate::{
    args::Worker,
    commands::serve::{stop_signal, told},
    error::{Failure, Outcome},
    logging, settings, ui,
};

pub(crate) async fn run(args: Worker) -> Outcome {
    let mut config = settings::worker(&args, &settings::process_env)?;
    config.runner_env = logging::inheritance(args.log_format);
    let registry = config.registry.clone();
    let stop = stop_signal()?;
    let worker = tokio::select! {
        started = lode_worker::start(config) => started.map_err(|error| {
            Failure::because("the worker cannot start", &error)
                .hint(format!("is {registry} the registry, and does it have the same worker token?"))
        })?,
        () = told(stop.clone()) => return Ok(()),
    };
    ui::line(format!("listening on http://{}", worker.addr()))?;
    told(stop).await;
    worker.stop().await;
    Ok(())
}
