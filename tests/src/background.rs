//! A listener on its own thread and runtime, so that a proxy keeps running while a test blocks on another
//! program.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread::JoinHandle;

use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// A listening thread. Dropping it ends the thread and its connections.
pub(crate) struct BackgroundListener {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundListener {
    /// Listens on a free port of 127.0.0.1 and runs `serve` there.
    ///
    /// # Panics
    ///
    /// If there is no free port.
    pub(crate) fn listen<R, F>(serve: F) -> (SocketAddr, Self)
    where
        R: Future<Output = ()>,
        F: FnOnce(TcpListener) -> R + Send + 'static,
    {
        let (stop, stopped) = oneshot::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime").block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
                sender.send(listener.local_addr().expect("an address")).expect("the starter waits for it");
                tokio::select! {
                    () = serve(listener) => {}
                    _ = stopped => {}
                }
            });
        });
        let address = receiver.recv().expect("the thread listens");
        (address, Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for BackgroundListener {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
