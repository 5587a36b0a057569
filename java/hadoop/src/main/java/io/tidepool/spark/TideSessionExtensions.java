package io.tidepool.spark;

import io.tidepool.hadoop.TideFileSystem;
import org.apache.spark.sql.SparkSessionExtensions;
import org.apache.spark.sql.SparkSessionExtensionsProvider;
import scala.runtime.BoxedUnit;

/**
 * Makes {@code tide://} known where the jar came by {@code --jars} or {@code --packages}. Hadoop
 * lists the file systems of the class path once, while {@code spark-submit} looks at its arguments
 * and before Spark adds these jars; a configuration is asked again at each use. Spark finds this
 * class by itself when it makes a session, and it adds nothing to the session; nowhere else is it
 * loaded.
 */
public final class TideSessionExtensions implements SparkSessionExtensionsProvider {

    /** For Spark. */
    public TideSessionExtensions() {
    }

    @Override
    public BoxedUnit apply(SparkSessionExtensions extensions) {
        TideFileSystem.makeKnown();
        return BoxedUnit.UNIT;
    }
}
