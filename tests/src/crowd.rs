//! Many TCP connections of clients that mean harm: they send what they are told to, read nothing, and come again when they are closed.

use std::io::{ErrorKind, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use nix::errno::Errno;
use socket2::{Domain, Socket, Type};

/// A crowd of connections, none of which ever waits.
#[derive(Debug)]
pub struct Crowd {
    server: SocketAddr,
    members: Vec<Member>,
    octets: Vec<u8>,
    again: usize,
    at_a_time: usize,
}

#[derive(Debug)]
struct Member {
    from: IpAddr,
    stream: Option<TcpStream>,
    sent: usize,
}

impl Crowd {
    /// So many connections from each of these addresses, each of which will send these octets and no more.
    pub fn gather(server: SocketAddr, from: &[IpAddr], each: usize, octets: Vec<u8>) -> Self {
        let member = |from: &IpAddr| Member { from: *from, stream: None, sent: 0 };
        let members = (0..each).flat_map(|_| from.iter().map(member)).collect();
        Self { server, members, octets, again: 0, at_a_time: usize::MAX }
    }

    /// Comes again so many at a time only: for what costs a server that is not optimized much each time.
    pub fn slowly(mut self, at_a_time: usize) -> Self {
        self.at_a_time = at_a_time;
        self
    }

    /// Every connection sends up to `most` octets more, as far as the kernel takes them; those that were closed are made again. How many octets went out.
    pub fn press(&mut self, most: usize) -> usize {
        let mut pressed = 0;
        let mut may_come = if self.again == 0 { usize::MAX } else { self.at_a_time };
        for member in &mut self.members {
            let Some(stream) = &mut member.stream else {
                if may_come == 0 {
                    continue;
                }
                may_come -= 1;
                member.stream = connect(member.from, self.server).ok();
                member.sent = 0;
                continue;
            };
            let end = self.octets.len().min(member.sent + most);
            let closed = match stream.write(&self.octets[member.sent..end]) {
                Ok(sent) => {
                    member.sent += sent;
                    pressed += sent;
                    // Data, or nothing yet, are no end.
                    matches!(stream.peek(&mut [0]), Ok(0))
                }
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::NotConnected),
            };
            if closed {
                member.stream = None;
                self.again += 1;
            }
        }
        pressed
    }

    /// How many connections were closed by the server so far.
    pub fn closed(&self) -> usize {
        self.again
    }
}

fn connect(from: IpAddr, server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.set_nonblocking(true)?;
    match socket.connect(&server.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
        _ => Ok(socket.into()),
    }
}
