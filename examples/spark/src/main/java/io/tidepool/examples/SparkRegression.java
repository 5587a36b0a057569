package io.tidepool.examples;

import java.util.Arrays;
import org.apache.spark.SparkConf;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.java.JavaSparkContext;
import org.apache.spark.mllib.linalg.Vector;
import org.apache.spark.mllib.linalg.Vectors;
import org.apache.spark.mllib.optimization.Gradient;
import org.apache.spark.mllib.optimization.GradientDescent;
import org.apache.spark.mllib.optimization.HingeGradient;
import org.apache.spark.mllib.optimization.LeastSquaresGradient;
import org.apache.spark.mllib.optimization.LogisticGradient;
import org.apache.spark.mllib.optimization.SimpleUpdater;
import scala.Tuple2;

/**
 * MLlib's gradient descent that reads its input again in every iteration:
 * {@code SparkRegression DATA ITERATIONS}. Prints the weights of a logistic and a linear regression
 * and of a support vector machine. The label is whether a record is of the first five clusters; for
 * the linear one, its last feature.
 */
public final class SparkRegression {
    private static final int WEIGHTS = Records.DIMENSIONS - 1;
    private static final double SCALE = 100.0;
    private static final double STEP = 0.5;

    private SparkRegression() {}

    public static void main(String[] arguments) throws Exception {
        int iterations = Integer.parseInt(arguments[1]);
        try (JavaSparkContext spark = new JavaSparkContext(new SparkConf())) {
            Passes passes = new Passes();
            spark.sc().addSparkListener(passes);
            JavaRDD<byte[]> records = spark.binaryRecords(arguments[0], Records.BYTES);
            JavaRDD<Tuple2<Object, Vector>> classes = records.map(SparkRegression::classified);
            JavaRDD<Tuple2<Object, Vector>> values = records.map(SparkRegression::valued);
            descend(passes, "logistic", classes, new LogisticGradient(), iterations);
            descend(passes, "linear", values, new LeastSquaresGradient(), iterations);
            descend(passes, "svm", classes, new HingeGradient(), iterations);
        }
    }

    private static void descend(
            Passes passes,
            String name,
            JavaRDD<Tuple2<Object, Vector>> data,
            Gradient gradient,
            int iterations)
            throws Exception {
        Vector start = Vectors.dense(new double[WEIGHTS]);
        Vector weights = passes.run(() -> GradientDescent.runMiniBatchSGD(
                data.rdd(), gradient, new SimpleUpdater(), STEP, iterations, 0.0, 1.0, start, 0.0)
                ._1());
        StringBuilder line = new StringBuilder("WEIGHTS ").append(name);
        for (double weight : weights.toArray()) {
            line.append(' ').append(weight);
        }
        System.out.println(line);
    }

    private static Tuple2<Object, Vector> classified(byte[] record) {
        double[] features = Records.features(record);
        double label = Records.cluster(record) < 5 ? 1.0 : 0.0;
        return new Tuple2<>(label, scaled(features));
    }

    private static Tuple2<Object, Vector> valued(byte[] record) {
        double[] features = Records.features(record);
        return new Tuple2<>(features[WEIGHTS] / SCALE, scaled(features));
    }

    private static Vector scaled(double[] features) {
        double[] values = Arrays.stream(features, 0, WEIGHTS).map(value -> value / SCALE).toArray();
        return Vectors.dense(values);
    }
}
