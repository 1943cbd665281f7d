//! `/hf/api/whoami-v2`: the account of a token, for Hugging Face's clients.

use axum::extract::State;
use serde_json::{Value, json};

use crate::auth::{Access, AccountKind, Caller};
use crate::http::{Failure, Json};
use crate::{Error, Registry};

pub(crate) async fn get(State(registry): State<Registry>, caller: Caller) -> Result<Json<Value>, Failure> {
    let account = caller.account().ok_or(Error::Unauthorized)?;
    let own = registry.namespaces_of(&caller).await?;
    let organisations: Vec<Value> = own
        .iter()
        .filter(|(name, _)| *name != account.name)
        .map(|(name, role)| json!({ "type": "org", "name": name, "fullname": name, "roleInOrg": role.as_hub() }))
        .collect();
    let role = if account.scope.access >= Access::Write { "write" } else { "read" };
    Ok(Json(json!({
        "type": if account.kind == AccountKind::User { "user" } else { "app" },
        "id": account.id.simple().to_string(),
        "name": account.name,
        "fullname": account.name,
        "email": null,
        "emailVerified": false,
        "isPro": false,
        "canPay": false,
        "orgs": organisations,
        "auth": { "type": "access_token", "accessToken": { "displayName": account.credential.to_string(), "role": role } },
    })))
}
