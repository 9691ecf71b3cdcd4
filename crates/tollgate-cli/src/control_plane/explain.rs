//! `/api/explain`: which rules apply to a request and why, and the arithmetic of the verdict; for a request that is
//! described, or for one that was refused a while ago.

use http::{Response, StatusCode};

use super::ControlPlane;
use super::query::{QueryError, QueryFields};
use crate::data_plane::explained_check::explain_body;
use crate::explanation_json::explanation_json;
use crate::listeners::response_body::ResponseBody;
use crate::reply;

/// Largest body of a request to explain, in bytes: as large as that of a check.
pub(super) const EXPLAIN_BYTES_MAX: usize = crate::data_plane::http::CHECK_BYTES_MAX;

impl ControlPlane {
    /// Explains the request that a body of `/v1/check` describes.
    pub(super) async fn explain_request(
        &self,
        query: Option<&str>,
        body: &[u8],
    ) -> Result<Response<ResponseBody>, QueryError> {
        QueryFields::parse(query, &[])?;
        Ok(match explain_body(&self.gatekeeper, self.missing_facts, body).await {
            Ok(explanation) => {
                let document = explanation_json(&explanation, &self.names);
                reply::json(StatusCode::OK, document.to_string())
            }
            Err(problem) => reply::error(StatusCode::BAD_REQUEST, &problem),
        })
    }

    /// Explains a refusal that is still recorded.
    pub(super) fn explain_refusal(
        &self,
        query: Option<&str>,
    ) -> Result<Response<ResponseBody>, QueryError> {
        let fields = QueryFields::parse(query, &["refusal"])?;
        let Some(id) = fields.text("refusal") else {
            let message = "Name a refusal of /api/refusals, such as ?refusal=ID, or POST the body of a check.";
            return Ok(reply::error(StatusCode::BAD_REQUEST, message));
        };
        Ok(match self.metrics.observer.refusals().find(id) {
            Some(refusal) => reply::json(StatusCode::OK, refusal.story.to_string()),
            None => {
                let message =
                    "There is no such refusal: only the last ones are kept. See /api/refusals.";
                reply::error(StatusCode::NOT_FOUND, message)
            }
        })
    }
}
