package io.tidepool.examples;

import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.mllib.clustering.KMeans;
import org.apache.spark.mllib.clustering.KMeansModel;
import org.apache.spark.mllib.linalg.Vector;
import org.apache.spark.mllib.linalg.Vectors;
import org.apache.spark.storage.StorageLevel;

/**
 * MLlib's K-means that reads its input again in every pass: {@code SparkKMeans DATA START PASSES}.
 * START is a local file with one line of numbers a centroid; what was found is printed the same way.
 */
public final class SparkKMeans {
    private SparkKMeans() {}

    public static void main(String[] arguments) throws Exception {
        String data = arguments[0];
        Vector[] centroids = Files.readAllLines(Path.of(arguments[1])).stream()
                .map(SparkKMeans::parse).toArray(Vector[]::new);
        int count = Integer.parseInt(arguments[2]);
        try (JavaSparkContext spark = new JavaSparkContext(new SparkConf())) {
            Passes passes = new Passes();
            spark.sc().addSparkListener(passes);
            for (int pass = 0; pass < count; pass++) {
                Vector[] before = centroids;
                centroids = passes.run(() -> step(spark, data, before));
            }
        }
        for (Vector centroid : centroids) {
            StringBuilder line = new StringBuilder("CENTROID");
            for (double value : centroid.toArray()) {
                line.append(' ').append(value);
            }
            System.out.println(line);
        }
    }

    private static Vector[] step(JavaSparkContext spark, String data, Vector[] before) {
        JavaRDD<Vector> records = spark.binaryRecords(data, Records.BYTES)
                .map(record -> Vectors.dense(Records.features(record)));
        // Not NONE, or MLlib keeps the data itself; nothing is ever kept at this level, because the
        // memory outside of the heap has no size by default.
        records.persist(StorageLevel.OFF_HEAP());
        KMeansModel model = new KMeans().setK(before.length).setMaxIterations(1).setEpsilon(0)
                .setInitialModel(new KMeansModel(before)).run(records.rdd());
        return model.clusterCenters();
    }

    private static Vector parse(String line) {
        String[] words = line.trim().split(" +");
        double[] values = new double[words.length];
        for (int at = 0; at < words.length; at++) {
            values[at] = Double.parseDouble(words[at]);
        }
        return Vectors.dense(values);
    }
}
