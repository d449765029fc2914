//! The hot path does not allocate once it is warm.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;

use crate::support::{PATIENCE, client, reply, wait_for};
use sockets::{
    BATCH, Epoll, Events, ListenOptions, ListenSocket, RecvBatch, SendBatch, UpstreamSocket, Waker,
};

#[test]
fn receive_and_send_do_not_allocate() -> io::Result<()> {
    let server = ListenSocket::bind_first(SocketAddr::from(([0, 0, 0, 0], 0)), &ListenOptions::default())?;
    let client = client("127.0.0.1", SocketAddr::from(([127, 0, 0, 5], server.local_addr().port())))?;
    let upstream = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let socket = UpstreamSocket::connect(upstream.local_addr()?, std::iter::empty(), None)?;
    let (epoll, mut events, waker) = (Epoll::new()?, Events::new(8), Waker::new()?);
    epoll.add(&server, 0)?;
    epoll.add(&socket, 1)?;
    epoll.add(&waker, 2)?;
    let (mut batch, mut replies) = (RecvBatch::new(BATCH, 4096), SendBatch::new(BATCH, 512, 4096));
    let mut round = || -> io::Result<usize> {
        for _ in 0..BATCH {
            client.send(&[1; 500])?;
            upstream.send_to(&[2; 500], socket.local_addr())?;
        }
        wait_for_quietly(&epoll, &mut events)?;
        let mut handled = server.receive(&mut batch)?;
        for datagram in batch.iter() {
            replies.slot().expect("as many slots as datagrams").extend_from_slice(datagram.bytes);
            replies.commit(datagram.peer, datagram.local);
        }
        // A reply that the kernel refuses does not allocate either.
        reply(&mut replies, &SocketAddr::from(([127, 0, 0, 1], 0)), None, b"refused");
        handled += server.send(&mut replies).sent;
        handled += socket.send_batch([[3; 40].as_slice(); BATCH], |_, _| {}).sent;
        handled += socket.receive(&mut batch)?;
        waker.wake();
        wait_for_quietly(&epoll, &mut events)?;
        waker.drain();
        Ok(handled)
    };
    round()?;
    let before = ALLOCATIONS.get();
    let mut handled = 0;
    for _ in 0..10 {
        handled += round()?;
    }
    assert_eq!(ALLOCATIONS.get() - before, 0);
    assert!(handled >= 10 * BATCH, "{handled}");
    wait_for(&client)?;
    assert!(ALLOCATIONS.get() > before, "the counter counts");
    Ok(())
}

fn wait_for_quietly(epoll: &Epoll, events: &mut Events) -> io::Result<()> {
    epoll.wait(events, Some(PATIENCE)).map(drop)
}

struct Counting;

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Of this thread alone: the test harness allocates as well.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}
