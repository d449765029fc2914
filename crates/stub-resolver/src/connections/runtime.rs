//! tokio, as hickory uses it for the connections of one server.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use hickory_resolver::net::runtime::{QuicSocketBinder, RuntimeProvider, TokioHandle, TokioRuntimeProvider};

/// The tasks of one server's connections; they end when the last clone is dropped.
#[derive(Clone)]
pub(super) struct Runtime {
    tokio: TokioRuntimeProvider,
    server: SocketAddr,
}

impl Runtime {
    pub(super) fn new(server: SocketAddr) -> Self {
        Self { tokio: TokioRuntimeProvider::new(), server }
    }
}

type Opened<T> = Pin<Box<dyn Send + Future<Output = io::Result<T>>>>;

impl RuntimeProvider for Runtime {
    type Handle = TokioHandle;
    type Timer = <TokioRuntimeProvider as RuntimeProvider>::Timer;
    type Udp = <TokioRuntimeProvider as RuntimeProvider>::Udp;
    type Tcp = <TokioRuntimeProvider as RuntimeProvider>::Tcp;

    fn create_handle(&self) -> Self::Handle {
        self.tokio.create_handle()
    }

    /// Connects to the server's own address: hickory's has no link, which a link-local address needs.
    fn connect_tcp(
        &self,
        _: SocketAddr,
        source: Option<SocketAddr>,
        within: Option<Duration>,
    ) -> Opened<Self::Tcp> {
        self.tokio.connect_tcp(self.server, source, within)
    }

    fn bind_udp(&self, source: SocketAddr, server: SocketAddr) -> Opened<Self::Udp> {
        self.tokio.bind_udp(source, server)
    }

    fn quic_binder(&self) -> Option<&dyn QuicSocketBinder> {
        self.tokio.quic_binder()
    }
}
