//! The Prometheus endpoint: answers `GET /metrics`, and at `/` says that it does.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::{Error, ErrorKind, Result};
use tiny_http::{Header, Method, Request, Response, Server};

/// The running endpoint. Ends when dropped.
pub struct Endpoint {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens at `address` and answers from `node`.
    pub fn start(address: SocketAddr, node: Arc<dyn AdminService>) -> Result<Endpoint> {
        let operation = || format!("listening at {address} for metrics");
        let server = Server::http(address).map_err(|error| {
            Error::new(ErrorKind::InUse, operation(), error.to_string())
                .remedy("choose another address by --metrics-address")
        })?;
        let server = Arc::new(server);
        let listening = server.clone();
        let serve = move || {
            for request in listening.incoming_requests() {
                answer(request, &*node);
            }
        };
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(serve)
            .map_err(|source| Error::pfs(operation(), source))?;
        Ok(Endpoint { server, thread: Some(thread) })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn answer(request: Request, node: &dyn AdminService) {
    let plain = |text: String, status: u16| Response::from_string(text).with_status_code(status);
    let response = match (request.method(), request.url()) {
        (Method::Get, "/metrics") => match node.admin(AdminRequest::Metrics, None, u32::MAX) {
            Ok(AdminReply::Metrics(text)) => {
                let kind = "text/plain; version=0.0.4; charset=utf-8";
                let header = Header::from_bytes("Content-Type", kind);
                plain(text, 200).with_header(header.expect("the header is plain ASCII"))
            }
            Ok(_) => plain("the node answered something else\n".to_owned(), 500),
            Err(error) => plain(format!("{error}\n"), 500),
        },
        (Method::Get, "/") => {
            let header = Header::from_bytes("Content-Type", "text/html; charset=utf-8");
            let page = "<title>Tidepool node</title><a href=\"/metrics\">metrics</a>\n";
            plain(page.to_owned(), 200).with_header(header.expect("the header is plain ASCII"))
        }
        (Method::Get, _) => plain("only /metrics is here\n".to_owned(), 404),
        _ => plain("only GET is answered\n".to_owned(), 405),
    };
    // A client that went away needs no answer.
    let _ = request.respond(response);
}
