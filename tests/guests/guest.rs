//! Rust's standard library: sleeps, condition variables, channels, sockets, child processes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Condvar, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

const MS50: Duration = Duration::from_millis(50);

fn wait(name: &str, f: impl FnOnce()) {
    let before = Instant::now();
    f();
    println!("wait {name} {} {}", MS50.as_nanos(), before.elapsed().as_nanos());
}

fn main() {
    let start = Instant::now();
    println!("stamp start 0");
    wait("sleep", || std::thread::sleep(MS50));
    wait("condvar", || {
        let m = Mutex::new(());
        let r = Condvar::new().wait_timeout(m.lock().unwrap(), MS50).unwrap();
        println!("= condvar {}", r.1.timed_out());
    });
    wait("channel", || println!("= channel {:?}", mpsc::channel::<u8>().1.recv_timeout(MS50).is_err()));
    wait("channel.open", || {
        let (_keep, r) = mpsc::channel::<u8>();
        println!("= channel {:?}", r.recv_timeout(MS50));
    });
    wait("park", || {
        let until = Instant::now() + MS50;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            std::thread::park_timeout(left);
        }
    });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let echo = std::thread::spawn(move || {
        let mut s = listener.accept().unwrap().0;
        let mut b = [0];
        s.read_exact(&mut b).unwrap();
        std::thread::sleep(MS50);
        s.write_all(&b).unwrap();
        // The other side has to run into its timeout: the socket stays open.
        ended.recv().unwrap_err();
    });
    let mut s = TcpStream::connect(at).unwrap();
    wait("socket", || {
        s.write_all(b"x").unwrap();
        let mut b = [0];
        s.read_exact(&mut b).unwrap();
        println!("= echo {b:?}");
    });
    s.set_read_timeout(Some(MS50)).unwrap();
    wait("read_timeout", || println!("= read {:?}", s.read(&mut [0]).unwrap_err().kind()));
    drop(end);
    echo.join().unwrap();
    let out = std::process::Command::new("sh").args(["-c", "sleep 0.02; exit 4"]).status().unwrap();
    println!("= child {:?}", out.code());
    println!("= clock {}", SystemTime::now() > SystemTime::UNIX_EPOCH);
    println!("stamp end {}", start.elapsed().as_nanos());
}
