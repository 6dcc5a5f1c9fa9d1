#!/bin/sh
# What a container of the image is: the first argument says it. Anything that is not named here is run as it is.
set -eu

case "${1:-}" in
kafka | zookeeper | minio | redis | bucket)
  exec python -m keyshift.services.serve "$@"
  ;;

executor)
  # Spark's Kubernetes scheduler says all of it in the environment; the command line is ours to make.
  : "${SPARK_DRIVER_URL:?is not set: an executor is started by the driver, not by hand}"
  jars=$(python -c 'from keyshift.services.jars import pyspark_jars; print(pyspark_jars())')
  # The configuration that Spark mounts comes first, so that its log4j2.properties wins over those in jars.
  classpath="${SPARK_CONF_DIR:+$SPARK_CONF_DIR:}$jars/*${SPARK_EXTRA_CLASSPATH:+:$SPARK_EXTRA_CLASSPATH}"
  set --
  # Numbered from 0 and may hold spaces. The packages that Spark needs opened are among them: the driver adds them to
  # spark.executor.extraJavaOptions.
  number=0
  while eval "[ -n \"\${SPARK_JAVA_OPT_$number+set}\" ]"; do
    eval "set -- \"\$@\" \"\$SPARK_JAVA_OPT_$number\""
    number=$((number + 1))
  done
  exec java "$@" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classpath" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
  ;;

driver)
  # The driver's pod of `spark-submit --deploy-mode cluster` and of the Spark operator.
  shift
  exec spark-submit --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" --deploy-mode client "$@"
  ;;

'')
  echo "say what to be: kafka, zookeeper, minio, redis, bucket, or a command like 'keyshift --help'" >&2
  exit 2
  ;;

*)
  exec "$@"
  ;;
esac
