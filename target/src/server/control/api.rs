//! What can be asked of the daemon: paths, bodies, answers.
//!
//! | request | body | does |
//! |---|---|---|
//! | `GET /v1/status?array=NAME` | | all arrays, or one, and the exports |
//! | `POST /v1/arrays/NAME/VERB` | [`Request`] without its verb | `stop`, `assemble`, `add`, `fail`, `remove`, `check`, `cancel` |
//!
//! Answers are of [`crate::server::report`]: 200 with what was asked for, else a [`Refusal`] with
//! 404 (not there), 400 (makes no sense), 409 (not now; nothing was touched), 503 (just starting) or
//! 500 (tried, failed).

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};

use crate::server::report::{Done, Refusal, RefusalKind, Status};

/// What is asked about one array.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Stop it: finish its writes, mark it clean, take no more.
    Stop,
    /// Start an array that waits for members, or was stopped.
    Assemble {
        /// Without the members that are missing.
        #[serde(default)]
        run: bool,
        /// Although its redundancy is not known to be good.
        #[serde(default)]
        force: bool,
        /// The drive whose half is right, if halves were used apart.
        #[serde(default)]
        winner: Option<String>,
    },
    /// Put a drive in.
    Add {
        /// Its absolute path.
        drive: String,
        /// Where; the first free slot if not given.
        #[serde(default)]
        slot: Option<usize>,
    },
    /// Take a member out of use.
    Fail {
        /// A slot, path or serial number.
        member: String,
    },
    /// Let go of the drive of a member that has failed.
    Remove {
        /// A slot, path or serial number.
        member: String,
    },
    /// Compare copies, or parity.
    Check {
        /// And mend what differs.
        #[serde(default)]
        repair: bool,
    },
    /// End a check or repair early.
    Cancel,
}

impl Request {
    /// The path's last part.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Assemble { .. } => "assemble",
            Self::Add { .. } => "add",
            Self::Fail { .. } => "fail",
            Self::Remove { .. } => "remove",
            Self::Check { .. } => "check",
            Self::Cancel => "cancel",
        }
    }

    /// From a path's verb and a body.
    fn read(verb: &str, body: &[u8]) -> Result<Self, Refusal> {
        const VERBS: [&str; 7] = ["stop", "assemble", "add", "fail", "remove", "check", "cancel"];
        if !VERBS.contains(&verb) {
            let verbs = VERBS.join(", ");
            return Err(Refusal::not_found(format!(
                "there is no verb {verb} for an array; there are {verbs}"
            )));
        }
        let mut fields = match body.trim_ascii() {
            b"" => serde_json::Map::new(),
            body => serde_json::from_slice(body).map_err(|error| {
                Refusal::invalid(format!("the body is no JSON object: {error}"))
            })?,
        };
        fields.insert("verb".into(), verb.into());
        serde_json::from_value(fields.into())
            .map_err(|error| Refusal::invalid(format!("the body does not fit {verb}: {error}")))
    }

    /// The body that goes with the path.
    pub fn body(&self) -> Vec<u8> {
        let mut value = serde_json::to_value(self).unwrap_or_default();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("verb");
        }
        // A `Value` always has a text.
        serde_json::to_vec(&value).unwrap_or_default()
    }
}

/// A future of the [`Operator`]'s.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Refusal>> + Send>>;

/// Who does what is asked: the control plane.
pub trait Operator: Send + Sync {
    /// All arrays, or the one of this name.
    fn status(&self, array: Option<String>) -> Answer<Status>;
    /// Does something with an array.
    fn command(&self, array: String, request: Request) -> Answer<Done>;
}

type Shared = Arc<dyn Operator>;

/// The router.
pub fn router(operator: Shared, max_body_bytes: usize) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/arrays/{name}/{verb}", post(command))
        .fallback(|| async {
            Refused(Refusal::not_found(
                "there is no such path; this version serves /v1/status and /v1/arrays/",
            ))
        })
        .method_not_allowed_fallback(|| async {
            let text =
                "this path is asked with GET if it ends with status, with POST if with a verb";
            (StatusCode::METHOD_NOT_ALLOWED, Json(Refusal::invalid(text)))
        })
        .layer(DefaultBodyLimit::max(max_body_bytes))
        .with_state(operator)
}

/// A refusal as a response.
struct Refused(Refusal);

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let code = match self.0.kind {
            RefusalKind::NotFound => StatusCode::NOT_FOUND,
            RefusalKind::Invalid => StatusCode::BAD_REQUEST,
            RefusalKind::Conflict => StatusCode::CONFLICT,
            RefusalKind::Starting => StatusCode::SERVICE_UNAVAILABLE,
            RefusalKind::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (code, Json(self.0)).into_response()
    }
}

/// The query of `status`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Filter {
    array: Option<String>,
}

async fn status(
    State(operator): State<Shared>,
    filter: Result<Query<Filter>, axum::extract::rejection::QueryRejection>,
) -> Result<Json<Status>, Refused> {
    let Query(filter) = filter.map_err(|error| Refused(Refusal::invalid(error.body_text())))?;
    operator.status(filter.array).await.map(Json).map_err(Refused)
}

async fn command(
    State(operator): State<Shared>,
    Path((array, verb)): Path<(String, String)>,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Json<Done>, Refused> {
    let body = body.map_err(|error| Refused(Refusal::invalid(error.body_text())))?;
    let request = Request::read(&verb, &body).map_err(Refused)?;
    // On a task of its own: what was begun is carried to its end even if whoever asked has gone.
    let work = tokio::spawn(operator.command(array, request));
    let ended = work.await.unwrap_or_else(|error| {
        Err(Refusal::failed(format!("the command ended with a fault of raidfabric: {error}")))
    });
    ended.map(Json).map_err(Refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_their_way() {
        for request in [
            Request::Stop,
            Request::Assemble { run: true, force: false, winner: Some("S1".into()) },
            Request::Add { drive: "/dev/x".into(), slot: Some(2) },
            Request::Add { drive: "/dev/x".into(), slot: None },
            Request::Fail { member: "1".into() },
            Request::Remove { member: "S1".into() },
            Request::Check { repair: true },
            Request::Cancel,
        ] {
            assert_eq!(Request::read(request.verb(), &request.body()).unwrap(), request);
        }
        assert_eq!(Request::read("check", b"").unwrap(), Request::Check { repair: false });
    }

    #[test]
    fn what_does_not_fit_is_told() {
        for (verb, body, kind, part) in [
            ("explode", "", RefusalKind::NotFound, "remove, check"),
            ("add", "", RefusalKind::Invalid, "missing field `drive`"),
            ("add", "[]", RefusalKind::Invalid, "no JSON object"),
            ("fail", r#"{"member": 1}"#, RefusalKind::Invalid, "does not fit fail"),
            ("check", r#"{"rapair": true}"#, RefusalKind::Invalid, "rapair"),
        ] {
            let refusal = Request::read(verb, body.as_bytes()).unwrap_err();
            assert_eq!(refusal.kind, kind, "{refusal:?}");
            assert!(refusal.message.contains(part), "{refusal:?}");
        }
    }
}
