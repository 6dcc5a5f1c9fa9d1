#!/usr/bin/env bash
# Puts keyshift into the root file system it runs in: a container image under construction, as root. Never a machine.
# Needs Python 3.11 or newer with venv, a Java 17 runtime, and the project's files one folder up. May be run again.
#
# Nothing is installed that requirements.lock (Python), jars.sha256 (Java) and go.lock with Go's checksum database (MinIO)
# do not vouch for. The lock is one for everything, so all of it is installed, because pyspark and keyshift have to be
# built; then what keyshift does not need to run is taken out again. A second lock would be one more thing to keep true.
set -euo pipefail

umask 022
src=$(cd "$(dirname "$0")/.." && pwd)
prefix=/opt/keyshift
scratch=$(mktemp -d)
export HOME=$scratch  # what tools leave in a home folder
mounted=
trap 'rm -rf "$scratch" /tmp/hsperfdata_root; ${mounted:+umount --lazy /proc}' EXIT
# Java finds itself, and Go its library, through /proc, which a bare chroot lacks.
[ -e /proc/self ] || { mount -t proc proc /proc && mounted=yes; }
# What the next build of the image may use again, if somebody keeps it (in the Dockerfile a cache of BuildKit).
kept=${KEYSHIFT_BUILD_CACHE:-$scratch/kept}

say() { echo "install: $*" >&2; }
pip() { "$prefix/bin/python" -m pip --disable-pip-version-check --quiet --cache-dir "$kept/pip" "$@"; }
python() { (cd / && "$prefix/bin/python" "$@"); }

say "Python packages of requirements.lock"
python3 -m venv "$prefix"
# In two steps, as in the Makefile: pyspark exists as source only, and is built by the setuptools of the lock.
sed '/^pyspark==/,/[^\\]$/d' "$src/requirements.lock" >"$scratch/wheels.lock"
pip install --no-deps --require-hashes --only-binary=:all: -r "$scratch/wheels.lock"
pip install --no-deps --require-hashes --no-build-isolation --use-pep517 -r "$src/requirements.lock"
pip install --no-deps --no-build-isolation --force-reinstall "$src"

say "jars of jars.xml"
KEYSHIFT_CACHE=$prefix/cache python -c 'from keyshift.services.jars import CONFS, jars
for conf in CONFS:
    jars(conf)'
rm -rf "$prefix"/cache/{ivy,ivy.log,jars.lock}

if [ ! -x /usr/local/bin/minio ]; then
  say "MinIO, which takes minutes"
  built=$(KEYSHIFT_CACHE=$kept python -c 'import sys
from keyshift.services.go_programs import go_program
from keyshift.services.minio import PROGRAM
print(go_program(PROGRAM, lambda line: print(line, file=sys.stderr)))')
  install -m 0755 "$built" /usr/local/bin/minio
fi

say "taking out what was needed for building only"
python -c 'from keyshift.place.image import not_needed
print(*not_needed(), sep="\n")' >"$scratch/extra"
pip uninstall --yes -r "$scratch/extra"
python -m pip check

say "notebooks, sets of parameters, entry point, user"
for folder in notebooks data; do
  rm -rf "$prefix/$folder"
  cp -r "$src/$folder" "$prefix/$folder"
done
find "$prefix/notebooks" -name .ipynb_checkpoints -prune -exec rm -rf {} +
install -m 0755 "$src/cluster/entrypoint.sh" "$prefix/entrypoint"
# JupyterLab of a pod asks nobody about news, as that of `keyshift lab`.
cp -r "$src/lib/keyshift/cli/jupyter/." "$prefix/etc/jupyter"
# Hadoop's login fails for a user without a name.
getent group 1000 >/dev/null || groupadd --gid 1000 keyshift
getent passwd 1000 >/dev/null || useradd --uid 1000 --gid 1000 --no-create-home --home-dir /var/lib/keyshift \
  --shell /usr/sbin/nologin keyshift
install -d -o 1000 -g 1000 -m 0700 /var/lib/keyshift
chmod -R u+w,a+rX,go-w "$prefix"

# What must be there is there, and what must not be is not.
for tool in gcc cc go javac; do
  ! command -v "$tool" >/dev/null || { say "$tool is in the image: use a base without compilers"; exit 1; }
done
minio --version >&2
PATH=$prefix/bin:$PATH python -c 'import keyshift.cli, pyspark
from keyshift.redis_program import redis_program
redis_program()'
say "done: $(du -sm "$prefix" | cut -f1) MB in $prefix"
