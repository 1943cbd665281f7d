//! `lode worker`: runs an inference node that joins a registry, until a signal stops it.

use crate::{
    args::{Global, Worker},
    commands::serve::{stop_signal, wait_for_stop},
    connect,
    error::{CANNOT_RUN, Failure, Outcome},
    logging, settings, ui, variables,
};

pub(crate) async fn run(global: &Global, args: Worker) -> Outcome {
    let mut config = settings::worker(&args, &settings::process_env)?;
    config.authorities = connect::authorities(global)?;
    variables::warn_of_unknown();
    config.runner_env = logging::inherited_env(args.log_format);
    let stop = stop_signal()?;
    lode_worker::metrics::install();
    let worker = tokio::select! {
        started = lode_worker::start(config) => started.map_err(|error| {
            let failure = Failure::with_source("the worker cannot start", &error);
            match error {
                lode_worker::Error::Device(_) => device_hint(failure),
                // A registry that is not there yet or refuses the token is logged, and tried again.
                _ => failure,
            }
        })?,
        () = wait_for_stop(stop.clone()) => return Ok(()),
    };
    ui::print_line(format!("listening on http://{}", worker.addr()))?;
    wait_for_stop(stop).await;
    worker.stop().await;
    Ok(())
}

/// Adds the next step to the failure to use a GPU.
pub(crate) fn device_hint(failure: Failure) -> Failure {
    failure.code(CANNOT_RUN).hint(
        "`lode doctor` shows what was found; --device auto uses the CPU if there is no usable GPU, --device cpu always",
    )
}
