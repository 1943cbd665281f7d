//! Every route of the server, grouped by who calls it.
//! The middleware around them is in `layers.rs`.

use axum::Router;

use crate::api::copy::copy;
use crate::api::inference::passthrough_route;
use crate::api::{
    access, anthropic, audit, blobs, cards, connections, diff, files, health, import, inference, jobs,
    maintenance, models, ollama, openai, openapi, ps, publishers, repositories, rerank, rules, search,
    status, webhooks, workers,
};
use crate::gateway::Gateway;
use crate::http::Failure;
use crate::http::methods::{delete, get, head, patch, post, put};
use crate::http::model_name;
use crate::http::state::ServerState;
use crate::layers::Layers;
use crate::{OpenError, Registry, hf, hub, oci};

/// The server as a router, to nest in another or to call without a socket.
pub fn router(registry: Registry) -> Result<Router, OpenError> {
    Ok(Router::new().fallback_service(service(registry)?))
}

/// The server as one service.
pub(crate) fn service(registry: Registry) -> Result<Layers, OpenError> {
    let gateway = Gateway::new(registry.config())?;
    let routes = Router::new()
        .merge(distribution())
        .merge(ollama_api())
        .merge(openai_api())
        .merge(anthropic_api())
        .merge(rerank_api())
        .merge(lode_api())
        .merge(operators())
        .merge(hugging_face_api())
        .merge(pages())
        .fallback(hub::unknown_page)
        .method_not_allowed_fallback(async || Failure::MethodNotAllowed)
        .with_state(ServerState { registry: registry.clone(), gateway });
    Ok(Layers::wrap(registry, routes))
}

/// docker, oras, skopeo, crane, ollama and workers.
fn distribution() -> Router<ServerState> {
    use oci::{blobs, catalog, manifests, referrers, support, tags, token, uploads};
    let blob = get(blobs::get).merge(head(blobs::head)).merge(delete(blobs::delete));
    let manifest = get(manifests::get).merge(put(manifests::put)).merge(delete(manifests::delete));
    let upload = get(uploads::get)
        .merge(patch(uploads::patch))
        .merge(put(uploads::put))
        .merge(delete(uploads::delete));
    Router::new()
        .route("/v2", get(support::get))
        .route("/v2/", get(support::get))
        .route("/token", get(token::get).merge(post(token::post)))
        .route("/v2/_oci/ext/discover", get(support::extensions))
        .route("/v2/_catalog", get(catalog::list))
        .route("/v2/{name}/blobs/{digest}", blob)
        .route("/v2/{name}/blobs/uploads", post(uploads::post))
        .route("/v2/{name}/blobs/uploads/", post(uploads::post))
        .route("/v2/{name}/blobs/uploads/{id}", upload)
        .route("/v2/{name}/manifests/{reference}", manifest)
        .route("/v2/{name}/tags/list", get(tags::list))
        .route("/v2/{name}/referrers/{digest}", get(referrers::list))
}

/// ollama's clients and libraries.
fn ollama_api() -> Router<ServerState> {
    Router::new()
        .route("/api/version", get(ollama::version))
        .route("/api/tags", get(ollama::tags::list))
        .route("/api/show", ollama::show::show(model_name::parse))
        .route("/api/delete", delete(ollama::delete))
        .route("/api/copy", copy(model_name::parse))
        .route("/api/create", post(ollama::create::post))
        .route("/api/blobs/{digest}", post(ollama::blobs::post).merge(head(ollama::blobs::head)))
        .route("/api/pull", post(ollama::pull::post))
        .route("/api/push", post(ollama::push::post))
        .route("/api/ps", get(ps::list))
        .route("/api/me", post(ollama::me))
        .route("/api/signout", post(ollama::sign_out))
        .route("/api/generate", passthrough_route("/api/generate", model_name::parse))
        .route("/api/chat", passthrough_route("/api/chat", model_name::parse))
        .route("/api/embed", passthrough_route("/api/embed", model_name::parse))
        .route("/api/embeddings", post(inference::embeddings))
        // Ollama has no such route; the name follows its others.
        .route("/api/rerank", passthrough_route("/api/rerank", model_name::parse))
}

/// OpenAI's libraries.
fn openai_api() -> Router<ServerState> {
    Router::new()
        .route("/v1/models", get(openai::models::list))
        .route("/v1/models/{*model}", get(openai::models::show))
        .route("/v1/chat/completions", post(openai::chat::post))
        .route("/v1/completions", post(openai::completions::post))
        .route("/v1/embeddings", post(openai::embeddings::post))
        .route("/v1/responses", post(openai::responses::post))
        .route("/v1/responses/input_tokens", post(openai::responses::count_tokens))
        .route("/v1/responses/{id}", get(openai::responses::stored).merge(delete(openai::responses::stored)))
        .route("/v1/responses/{id}/cancel", post(openai::responses::stored))
        .route("/v1/responses/{id}/input_items", get(openai::responses::stored))
}

/// Anthropic's libraries.
fn anthropic_api() -> Router<ServerState> {
    Router::new()
        .route("/v1/messages", post(anthropic::messages::post))
        .route("/v1/messages/count_tokens", post(anthropic::messages::count_tokens))
}

/// Clients of Jina's and Cohere's rerank APIs.
fn rerank_api() -> Router<ServerState> {
    Router::new().route("/v1/rerank", post(rerank::post)).route("/v2/rerank", post(rerank::post))
}

/// The CLI, workers and scripts. Names here have any number of parts, and may end in a digest.
fn lode_api() -> Router<ServerState> {
    let account = patch(access::change_account).merge(delete(access::delete_account));
    let tag_history = get(repositories::tag_history).merge(post(repositories::move_tag_back));
    let repository_card = get(cards::get_of_repository)
        .merge(put(cards::put_of_repository))
        .merge(delete(cards::delete_of_repository));
    let member = put(access::add_member).merge(delete(access::remove_member));
    Router::new()
        .route("/lode/v1/openapi.json", get(openapi::get))
        .route("/lode/v1/search", get(search::get))
        .route("/lode/v1/repositories", get(repositories::list))
        .route("/lode/v1/repositories/{name}/tags", get(repositories::tags))
        .route("/lode/v1/repositories/{name}/manifests", get(repositories::manifests))
        .route("/lode/v1/repositories/{name}/history", tag_history)
        .route("/lode/v1/repositories/{name}/move", post(repositories::move_to))
        .route("/lode/v1/repositories/{name}/pulls", get(repositories::pulls))
        .route("/lode/v1/repositories/{name}/retention", get(rules::retention))
        .route("/lode/v1/repositories/{name}/card", repository_card)
        .route("/lode/v1/models", get(models::list).merge(post(ollama::create::start)))
        .route("/lode/v1/import", post(import::start))
        .route("/lode/v1/models/{name}/{reference}", get(models::show))
        .route("/lode/v1/tensors/{name}/{reference}", get(models::tensors))
        .route("/lode/v1/files/{name}/{reference}", get(files::list))
        .route("/lode/v1/card/{name}/{reference}", get(cards::get).merge(put(cards::put)))
        .route("/lode/v1/diff/{name}/{reference}", get(diff::get))
        .route("/lode/v1/lineage/{name}/{reference}", get(models::lineage))
        .route("/lode/v1/blobs", get(blobs::get))
        .route("/lode/v1/show", ollama::show::show(model_name::parse_any))
        .route("/lode/v1/copy", copy(model_name::parse_any))
        .route("/lode/v1/generate", passthrough_route("/api/generate", model_name::parse_any))
        .route("/lode/v1/chat", passthrough_route("/api/chat", model_name::parse_any))
        .route("/lode/v1/embed", passthrough_route("/api/embed", model_name::parse_any))
        .route("/lode/v1/rerank", passthrough_route("/api/rerank", model_name::parse_any))
        .route("/lode/v1/score", passthrough_route("/lode/v1/score", model_name::parse_any))
        .route("/lode/v1/ps", get(ps::page))
        .route("/lode/v1/workers", get(workers::list).merge(post(workers::register)))
        .route("/lode/v1/workers/{id}", put(workers::heartbeat).merge(delete(workers::leave)))
        .route("/lode/v1/workers/{id}/drain", put(workers::drain).merge(delete(workers::resume)))
        .route("/lode/v1/status", get(status::get))
        .route("/lode/v1/connections", get(connections::get))
        .route("/lode/v1/webhooks", get(webhooks::list))
        .route("/lode/v1/webhooks/{id}/retry", post(webhooks::retry))
        .route("/lode/v1/gc", get(maintenance::waiting).merge(post(maintenance::gc)))
        .route("/lode/v1/gc/removals", get(maintenance::removals))
        .route("/lode/v1/gc/undo", post(maintenance::undo))
        .route("/lode/v1/fsck", post(maintenance::fsck))
        .route("/lode/v1/me", get(access::me))
        .route("/lode/v1/accounts", get(access::accounts).merge(post(access::create_account)))
        .route("/lode/v1/accounts/{name}", account)
        .route("/lode/v1/groups", get(access::groups).merge(post(access::create_group)))
        .route("/lode/v1/groups/{name}", delete(access::delete_group))
        .route("/lode/v1/groups/{name}/members/{account}", member)
        .route("/lode/v1/tokens", get(access::tokens).merge(post(access::create_token)))
        .route("/lode/v1/tokens/{id}", delete(access::revoke_token))
        .route("/lode/v1/tokens/{id}/rotate", post(access::rotate_token))
        .route("/lode/v1/grants", get(access::grants).merge(put(access::put_grant)))
        .route("/lode/v1/visibility", put(access::put_visibility))
        .route("/lode/v1/keys", get(access::keys).merge(post(access::add_key)))
        .route("/lode/v1/keys/{id}", delete(access::remove_key))
        .route("/lode/v1/publishers", get(publishers::list).merge(post(publishers::create)))
        .route("/lode/v1/publishers/{id}", delete(publishers::remove))
        .route("/lode/v1/quotas", get(rules::quotas).merge(put(rules::put_quota)))
        .route("/lode/v1/protected-tags", get(rules::protected_tags).merge(put(rules::put_protected_tags)))
        .route("/lode/v1/audit", get(audit::list))
        .route("/lode/v1/jobs", get(jobs::list))
        .route("/lode/v1/jobs/{id}", get(jobs::show).merge(delete(jobs::cancel)))
        .route("/lode/v1/jobs/{id}/findings", get(jobs::findings))
}

/// Hugging Face's libraries.
fn hugging_face_api() -> Router<ServerState> {
    use hf::{commit, lfs, list, models, preupload, refs, repositories, resolve, tree, xet};
    let branch = post(repositories::create_branch).merge(delete(repositories::delete_tag));
    let tag = post(repositories::create_tag).merge(delete(repositories::delete_tag));
    let discussions = get(repositories::discussions).merge(post(repositories::create_discussion));
    Router::new()
        .route("/hf/oauth/device", post(hf::oauth::device))
        .route("/hf/oauth/token", post(hf::oauth::token))
        .route("/hf/api/whoami-v2", get(hf::whoami::get))
        .route("/hf/api/models", get(list::list))
        .route("/hf/api/models/{name}", get(models::main))
        .route("/hf/api/models/{name}/revision/{revision}", get(models::revision))
        .route("/hf/api/models/{name}/tree/{revision}", get(tree::root))
        .route("/hf/api/models/{name}/tree/{revision}/{*path}", get(tree::folder))
        .route("/hf/api/models/{name}/paths-info/{revision}", post(tree::paths_info))
        .route("/hf/api/models/{name}/refs", get(refs::list))
        .route("/hf/api/models/{name}/commits/{revision}", get(refs::commits))
        .route("/hf/api/models/{name}/auth-check", get(refs::auth_check))
        .route("/hf/api/repos/create", post(repositories::create))
        .route("/hf/api/repos/delete", delete(repositories::delete))
        .route("/hf/api/repos/move", post(repositories::move_to))
        .route("/hf/api/validate-yaml", post(preupload::validate_yaml))
        .route("/hf/api/models/{name}/preupload/{revision}", post(preupload::post))
        .route("/hf/api/models/{name}/commit/{revision}", post(commit::post))
        .route("/hf/api/models/{name}/settings", put(repositories::settings))
        .route("/hf/api/models/{name}/branch/{revision}", branch)
        .route("/hf/api/models/{name}/tag/{revision}", tag)
        .route("/hf/api/models/{name}/super-squash/{revision}", post(refs::squash))
        .route("/hf/api/models/{name}/duplicate", post(repositories::duplicate))
        .route("/hf/api/models/{name}/discussions", discussions)
        .route("/hf/api/models/{name}/xet-write-token/{revision}", get(xet::write_token))
        .route("/hf/api/xet/{space}/{name}/v1/xorbs/default/{hash}", post(xet::post_xorb))
        .route("/hf/api/xet/{space}/{name}/v1/shards", post(xet::post_shard))
        .route("/hf/{name}", get(repositories::page))
        .route("/hf/{name}/commit/{revision}", get(repositories::page_of_commit))
        .route("/hf/{name}/tree/{revision}", get(repositories::page_of_tree))
        .route("/hf/{name}/tree/{revision}/{*path}", get(repositories::page_of_folder))
        .route("/hf/{name}/blob/{revision}/{*path}", get(repositories::page_of_file))
        .route("/hf/{name}/info/lfs/objects/batch", post(lfs::batch))
        .route("/hf/{name}/info/lfs/verify", post(lfs::verify))
        .route("/hf/api/lfs/{oid}", put(lfs::put))
        .route("/hf/api/lfs/{oid}/{upload}", post(lfs::finish))
        .route("/hf/api/lfs/{oid}/{upload}/{part}", put(lfs::put_part))
        .route("/hf/{name}/resolve/{revision}/{*path}", get(resolve::get).merge(head(resolve::head)))
}

/// Browsers.
fn pages() -> Router<ServerState> {
    use hub::repository::{
        card, diff, files, history, lineage, overview, quantise, referrers, rules, settings, tags, tensors,
        try_model,
    };
    use hub::{account, admin, api_reference, assets, connect, device, home, namespace, robot};
    use hub::{setup, sign_in, single_sign_on};
    Router::new()
        .route("/", get(home::get))
        .route("/models", get(hub::models::get))
        .route("/{name}", get(overview::get))
        .route("/{name}/-/tags", get(tags::get).merge(post(tags::post)))
        .route("/{name}/-/history", get(history::get).merge(post(history::post)))
        .route("/{name}/-/tree/{reference}", get(files::tree))
        .route("/{name}/-/tree/{reference}/{*path}", get(files::folder))
        .route("/{name}/-/blob/{reference}/{*path}", get(files::blob))
        .route("/{name}/-/raw/{reference}/{*path}", get(files::raw))
        .route("/{name}/-/tensors/{reference}", get(tensors::get))
        .route("/{name}/-/try", get(try_model::get).merge(post(try_model::post)))
        .route("/{name}/-/quantise", get(quantise::get).merge(post(quantise::post)))
        .route("/{name}/-/card", get(card::get).merge(post(card::post)))
        .route("/{name}/-/rules", get(rules::get).merge(post(rules::post)))
        .route("/{name}/-/settings", get(settings::get).merge(post(settings::post)))
        .route("/{name}/-/lineage", get(lineage::get))
        .route("/{name}/-/referrers", get(referrers::get))
        .route("/{name}/-/diff", get(diff::begin))
        .route("/{name}/-/diff/{*range}", get(diff::get))
        .route("/static/{file}", get(assets::get))
        .route("/login", get(sign_in::get).merge(post(sign_in::post)))
        .route("/logout", post(sign_in::logout))
        .route("/login/{provider}", get(single_sign_on::begin))
        .route("/login/{provider}/callback", get(single_sign_on::callback))
        .route("/setup", get(setup::get).merge(post(setup::post)))
        .route("/device", get(device::get).merge(post(device::post)))
        .route("/connect", get(connect::get).merge(post(connect::post)))
        .route("/-/api", get(api_reference::get))
        .route("/-/admin", get(admin::get))
        .route("/-/admin/workers", post(admin::change_worker))
        .route("/-/admin/accounts", get(admin::accounts::get))
        .route("/-/admin/quotas", get(admin::quotas::get).merge(post(admin::quotas::post)))
        .route("/-/admin/deletions", get(admin::deletions::get).merge(post(admin::deletions::post)))
        .route("/-/admin/audit", get(admin::audit::get))
        .route("/-/admin/connections", get(admin::connections::get).merge(post(admin::connections::post)))
        .route("/-/namespaces/{namespace}", get(namespace::get).merge(post(namespace::post)))
        .route("/-/robots/{robot}", get(robot::get).merge(post(robot::post)))
        .route("/-/account", get(account::get))
        .route("/-/account/tokens", post(account::change_token))
        .route("/-/account/keys", post(account::add_key))
        .route("/-/account/keys/remove", post(account::remove_key))
        .route("/-/account/identities", post(single_sign_on::connect))
        .route("/-/account/identities/remove", post(account::disconnect))
        .route("/-/account/password", post(account::change_password))
        .route("/-/account/sessions/end", post(account::end_sessions))
}

fn operators() -> Router<ServerState> {
    Router::new()
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
}
