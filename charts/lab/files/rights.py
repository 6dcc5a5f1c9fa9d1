"""What the driver may do in the cluster and what it may not, as the API server itself judges it."""

import os

from kubernetes import client, config

config.load_incluster_config()
reviews = client.AuthorizationV1Api()
here = os.environ["POD_NAMESPACE"]
elsewhere = "kube-system" if here != "kube-system" else "default"


def may(verb: str, resource: str, namespace: str) -> bool:
    """Whether this pod's account may do it; resource/subresource for a part of a resource."""
    kind, _, part = resource.partition("/")
    group = "rbac.authorization.k8s.io" if kind.startswith("role") else ""
    wish = client.V1ResourceAttributes(
        verb=verb, resource=kind, subresource=part or None, group=group, namespace=namespace
    )
    spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=wish)
    review = client.V1SelfSubjectAccessReview(spec=spec)
    return bool(reviews.create_self_subject_access_review(review).status.allowed)


needed = [(verb, "pods", here) for verb in ("create", "get", "list", "watch", "patch", "delete", "deletecollection")]
forbidden = [(verb, "secrets", here) for verb in ("get", "list", "watch", "create")]
forbidden += [("create", "pods/exec", here), ("create", "rolebindings", here), ("create", "configmaps", here)]
forbidden += [("deletecollection", "persistentvolumeclaims", here)]
forbidden += [(verb, "pods", elsewhere) for verb in ("create", "list", "delete")] + [("list", "secrets", elsewhere)]

lacks = [" ".join(wish) for wish in needed if not may(*wish)]
exceeds = [" ".join(wish) for wish in forbidden if may(*wish)]
assert not lacks, f"the driver's account may not, but must: {', '.join(lacks)}"
assert not exceeds, f"the driver's account may, but must not: {', '.join(exceeds)}"
print(f"{len(needed)} rights in {here} are there, {len(forbidden)} others are refused")
